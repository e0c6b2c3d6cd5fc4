"""Store directories in the console, beside what was put into them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.console.app import ConsoleConfig
from mqlake.console.store_files import named
from mqlake.store.check.verify import verify_store
from mqlake.store.read_only import ReadOnlyStore
from tests.console.live import Browser, Served, serving
from tests.store.small_store import COUNT, SETTINGS, TOPICS, contents, fill, flip, log_file, message
from tests.waiting import trying, until

BASE = "/stores/store"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("console") / "store")


@pytest.fixture(scope="module")
def served(root: Path) -> Iterator[Served]:
    with serving(ConsoleConfig(stores=named([str(root)]))) as found:
        yield found


@pytest.fixture(scope="module")
def browser(served: Served) -> Browser:
    return served.browser()


def test_the_store_is_described_as_it_is(browser: Browser, root: Path) -> None:
    found = browser.data(BASE)
    assert (found["messages"], found["topics"], found["queues"]) == (COUNT, len(TOPICS), 4)
    assert [file["name"] for file in found["logFiles"]] == sorted(
        p.name for p in (root / "commitlog").iterdir()
    )
    assert found["cleanExit"] and found["writer"] is None
    [row] = browser.data("/stores")["stores"]
    assert row["path"] == str(root) and row["error"] == ""
    assert len(browser.data(f"{BASE}/queues", filter="pay")["queues"]) == 2


def test_every_page_of_a_store_is_html_and_changes_nothing(browser: Browser, root: Path) -> None:
    before = contents(root)
    index = browser.data(BASE)["indexFiles"][0]["name"]
    pages = ["/stores", BASE, f"{BASE}/queues", f"{BASE}/queue?topic=Orders&queue=1", f"{BASE}/log"]
    pages += [f"{BASE}/record?offset=0", f"{BASE}/search?text=number", f"{BASE}/index?file={index}"]
    pages += [f"{BASE}/checkpoint", f"{BASE}/verify", f"{BASE}/dropped"]
    for page in pages:
        answer = browser.get(page)
        assert answer.status == 200 and answer.headers["content-type"].startswith("text/html"), page
        assert "</html>" in answer.text, page
    assert contents(root) == before


def test_the_log_is_paged_without_gaps(browser: Browser) -> None:
    offsets: list[int] = []
    query = {"rows": 64}
    for _ in trying("the last page"):
        found = browser.data(f"{BASE}/log", **query)
        assert found["holes"] == []
        offsets += [record["physicalOffset"] for record in found["records"]]
        if found["next"] is None:
            break
        query["offset"] = found["next"]
    assert len(offsets) == COUNT and offsets == sorted(set(offsets))


def test_units_lead_to_their_records(browser: Browser) -> None:
    found = browser.data(f"{BASE}/queue", topic="Orders", queue=1, offset=0, rows=3)
    assert [unit["queueOffset"] for unit in found["units"]] == [0, 1, 2]
    for unit in found["units"]:
        record = browser.data(f"{BASE}/record", offset=unit["physicalOffset"])["record"]
        assert (record["topic"], record["queueId"], record["queueOffset"]) == (
            "Orders",
            1,
            unit["queueOffset"],
        )
        assert record["size"] == unit["size"]


def numbers(browser: Browser, **query: object) -> list[int]:
    """The messages of a search, by their numbers, with all that follows."""
    found: list[int] = []
    for _ in trying("the last page"):
        page = browser.data(f"{BASE}/search", **query)
        found += [int(row["uniqKey"], 16) for row in page["records"]]
        if page["next"] is None:
            break
        query["after"] = page["next"]
    assert page["complete"]
    return found


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"key": "key-7"}, [7]),
        ({"key": "group-3"}, [n for n in range(COUNT) if n % 10 == 3]),
        ({"topic": "Payments", "tag": "Tag1"}, [n for n in range(COUNT) if n % 2 == 1 and n % 3 == 1]),
        ({"tag": "Tag2"}, [n for n in range(COUNT) if n % 3 == 2]),
        ({"text": "message 12 "}, [12]),
        (
            {"text": "message 1", "topic": "Orders"},
            [n for n in range(COUNT) if n % 2 == 0 and str(n)[0] == "1"],
        ),
        ({"id": f"{9:032X}"}, [9]),
        ({"from": "2999-01-01"}, []),
    ],
)
def test_a_search_finds_what_was_put(browser: Browser, query: dict[str, object], expected: list[int]) -> None:
    assert numbers(browser, rows=20, **query) == expected


def test_an_offset_that_begins_no_record_is_refused_by_name(browser: Browser) -> None:
    for page in ("record", "log"):
        answer = browser.get(f"{BASE}/{page}", offset=5, format="json")
        assert answer.status in (400, 500) and "5" in answer.json["error"]
    answer = browser.get("/stores/other", format="json")
    assert answer.status == 404 and "store" in answer.json["error"]
    answer = browser.get(f"{BASE}/queue", topic="Order", queue=1, format="json")
    assert answer.status == 404 and "Orders" in answer.json["error"]


def test_the_index_and_the_checkpoint_are_explained(browser: Browser, root: Path) -> None:
    for file in browser.data(BASE)["indexFiles"]:
        page = browser.data(f"{BASE}/index", file=file["name"], entry=1, rows=1000)
        assert len(page["entries"]) == file["entries"] == page["last"]
        assert {f["name"]: f["value"] for f in page["fields"]}["indexCount"] == str(file["entries"] + 1)
    with ReadOnlyStore(root) as store:
        for entry in page["entries"]:
            assert store.look_message_by_offset(entry["phy_offset"]).keys
    fields = browser.data(f"{BASE}/checkpoint")["fields"]
    assert fields[0]["name"] == "physicMsgTimestamp" and int(fields[0]["value"]) > 0


def test_verify_shows_what_verify_finds(tmp_path: Path) -> None:
    damaged = fill(tmp_path / "damaged")
    flip(log_file(damaged), 300)
    expected = verify_store(damaged)
    with serving(ConsoleConfig(stores=named([str(damaged)]))) as served:
        browser = served.browser()
        page = f"/stores/{damaged.name}/verify"
        assert browser.data(page)["job"] is None
        assert browser.post(page).status == 200
        until(lambda: not browser.data(page)["job"]["running"], "the verification ends")
        found = browser.data(page)
        assert not found["report"]["ok"]
        assert found["report"]["damageCount"] == expected.damage_count > 0
        shown = [(each["path"], each["offset"], each["text"]) for each in found["findings"]]
        assert shown == [(each.path, each.offset, each.text) for each in expected.findings]
        assert expected.findings[0].text in browser.get(page).text.replace("&#39;", "'")
        log = browser.data(f"/stores/{damaged.name}/log")
        assert log["holes"] or len(log["records"]) > 0


def test_what_a_writer_adds_is_seen(tmp_path: Path) -> None:
    live = fill(tmp_path / "live", count=3)
    with serving(ConsoleConfig(stores=named([str(live)]))) as served:
        browser = served.browser()
        assert len(browser.data("/stores/live/log")["records"]) == 3
        fill(live, 3, 2)
        until(lambda: len(browser.data("/stores/live/log")["records"]) == 5, "the new records are seen")


def test_a_compressed_body_is_shown_and_searched_as_it_was_sent(tmp_path: Path) -> None:
    import zlib

    from mqlake.message import MessageSysFlag
    from mqlake.store.message_store import open_store

    put = message(0)
    put.body = zlib.compress(b'{"a": "needle"}')
    put.sys_flag = MessageSysFlag.COMPRESSED_FLAG
    with open_store(tmp_path / "packed", SETTINGS) as store:
        assert store.put_message(put).is_ok
    with serving(ConsoleConfig(stores=named([str(tmp_path / "packed")]))) as served:
        browser = served.browser()
        assert len(browser.data("/stores/packed/search", text="needle")["records"]) == 1
        page = browser.data("/stores/packed/record", offset=0)
        assert page["payload"]["best"] == "json"
        assert "compressed with zlib" in str(page["fields"])


def test_directories_of_one_name_are_told_apart() -> None:
    assert list(named(["/a/store", "/b/store", "/c/other"])) == ["store", "store-2", "other"]
