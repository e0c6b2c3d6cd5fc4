"""What pages take of bodies that unpack to far more than they are: little, in memory and in time."""

from __future__ import annotations

import base64
import http.client
import json
import random
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from mqlake.client import Message
from mqlake.client.blocking import Admin
from mqlake.console.bodies import Bodies
from mqlake.console.excerpts import SEARCHED_MAX, SHOWN_MAX, excerpt, has_text, row
from mqlake.console.payload import TEXT_SHOWN, payload_views
from mqlake.formats.compression import COMPRESSION_NAMES, compress_body
from mqlake.message import MessageExt, MessageSysFlag
from mqlake.message.rendering import BODY_SHOWN, body_text
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.testing import RocketMQ
from tests.cli.test_serve import MQLAKE
from tests.console.live import Browser
from tests.console.test_cluster import fields
from tests.waiting import PATIENCE_S, until

UNPACKED = 256 << 20
BOMBS = 8
GROUP = "billing"
ZLIB = MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.COMPRESSION_ZLIB_TYPE
KINDS = [kind | 1 for kind in COMPRESSION_NAMES.values()]


def bomb() -> bytes:
    """261 KB that stand for 256 MiB."""
    packer, piece = zlib.compressobj(9), bytes(1 << 20)
    return b"".join(packer.compress(piece) for _ in range(UNPACKED >> 20)) + packer.flush()


@pytest.fixture(scope="module")
def packed() -> bytes:
    return bomb()


@pytest.fixture(scope="module")
def broker(packed: bytes) -> Iterator[RocketMQ]:
    """With bombs in a topic and among the dead letters of a group."""
    with RocketMQ() as running, Admin(running.namesrv) as admin:
        admin.create_subscription_group(SubscriptionGroupConfig(group_name=GROUP))
        for topic in ("Bombs", f"%DLQ%{GROUP}"):
            admin.create_topic(topic, queues=1)
            for number in range(BOMBS):
                message = Message(
                    topic, packed, keys=f"key-{number}", properties={"DLQ_ORIGIN_TOPIC": "Bombs"}
                )
                admin.ask(lambda a, m=message: a.brokers.send_message(running.broker, m, 0, "bombs", ZLIB))
            until(
                lambda topic=topic: topic in admin.fetch_all_topic_list(), "the name server knows the topic"
            )
        yield running


@pytest.fixture(scope="module")
def console(broker: RocketMQ) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*MQLAKE, "console", "-n", broker.namesrv, "--port", "0", "--json", "--allow-changes"],
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.terminate()
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def browser(console: subprocess.Popen[str]) -> Browser:
    assert console.stdout is not None
    return Browser(urlsplit(json.loads(console.stdout.readline())["url"]).netloc)


def peak(process: subprocess.Popen[str]) -> int:
    """The most memory that the process has had, in bytes."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


def test_no_page_takes_what_its_bodies_would_unpack_to(
    console: subprocess.Popen[str], browser: Browser, packed: bytes
) -> None:
    """One page of 20 such messages took 5 GiB, and the broker's process with it."""
    browser.data("/topics")
    before = peak(console)
    rows = browser.data("/topics/Bombs/messages")["messages"]
    assert len(rows) == BOMBS and all(row["bodyText"].startswith("·") for row in rows)
    place = {"broker": rows[0]["broker"], "queue": 0, "offset": 3}
    paths = [
        "/topics/Bombs/messages?rows=1000",
        "/topics/Bombs/messages?text=nowhere",
        "/topics/Bombs/messages?key=key-1",
        f"/messages?id={rows[0]['msgId']}",
        f"/groups/{GROUP}/dead-letters",
        *(f"/topics/Bombs/message?broker={place['broker']}&queue=0&offset={at}" for at in range(3)),
    ]
    threads = [
        threading.Thread(target=lambda p=path: statuses.append(browser.get(p).status)) for path in paths
    ]
    statuses: list[int] = []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [200] * len(paths)
    shown = browser.data("/topics/Bombs/message", **place)
    assert shown["payload"]["more"] and shown["payload"]["cut"]
    assert base64.b64decode(shown["message"]["body"]) == packed and shown["message"]["sysFlag"] & 1
    assert peak(console) - before < 200 << 20


def test_a_body_is_downloaded_piece_by_piece_and_one_that_cannot_be_unpacked_as_it_is(
    console: subprocess.Popen[str], browser: Browser, broker: RocketMQ
) -> None:
    [first] = browser.data("/topics/Bombs/messages", rows=1, key="key-0")["messages"]
    place = {"broker": first["broker"], "queue": 0, "offset": first["queueOffset"]}
    host, port = browser.address.split(":")
    before = peak(console)
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request("GET", f"/topics/Bombs/message/body?{urlencode(place)}")
    answer, size = connection.getresponse(), 0
    while piece := answer.read(1 << 20):
        size += len(piece)
    connection.close()
    assert size == UNPACKED and peak(console) - before < 50 << 20
    with Admin(broker.namesrv) as admin:
        admin.create_topic("Odd", queues=1)
        until(lambda: "Odd" in admin.fetch_all_topic_list(), "the name server knows the topic")
        odd = Message("Odd", b"no zlib stream")
        admin.ask(lambda a: a.brokers.send_message(broker.broker, odd, 0, "bombs", ZLIB))
    answer_of_odd = browser.get("/topics/Odd/message/body", broker=first["broker"], queue=0, offset=0)
    assert answer_of_odd.body == b"no zlib stream"


def test_an_export_has_them_as_they_are_stored(browser: Browser, packed: bytes) -> None:
    lines = [json.loads(line) for line in browser.get("/topics/Bombs/export").text.splitlines()]
    assert len(lines) == BOMBS
    assert all(base64.b64decode(line["body"]) == packed and line["sysFlag"] & 1 for line in lines)


def test_a_dead_letter_goes_back_as_it_is_stored(browser: Browser, packed: bytes) -> None:
    """Compressed as it is, under the flag that says so."""
    page = f"/groups/{GROUP}/dead-letters"
    first = browser.data(page, rows=1)["messages"][0]
    one = {
        "action": "one",
        "where": "topic",
        "broker": first["broker"],
        "queue": 0,
        "offset": first["queueOffset"],
    }
    browser.post(page, **fields(browser.post(page, **one).text), confirm="true")
    [line] = browser.get("/topics/Bombs/export", max=100).text.splitlines()[BOMBS:]
    assert base64.b64decode(json.loads(line)["body"]) == packed and json.loads(line)["sysFlag"] & 1


@pytest.mark.parametrize("flag", [0, *KINDS])
def test_an_excerpt_is_the_beginning_of_the_body(flag: int) -> None:
    body = bytes(range(256)) * 40
    stored = compress_body(body, flag) if flag else body
    for size in (0, 1, 100, len(body) - 1, len(body), len(body) + 1):
        found = excerpt(stored, flag, size)
        assert (found.body, found.is_whole, found.note) == (body[:size], size >= len(body), "")


@pytest.mark.parametrize("flag", [0, *KINDS])
@pytest.mark.parametrize(
    "body",
    [b"short", "ä日本".encode() * 200, b"x" * (4 * BODY_SHOWN), b"x" * 60, b"x" * 61, bytes(range(256)) * 9],
)
def test_a_row_shows_what_it_would_show_of_the_whole_body(flag: int, body: bytes) -> None:
    stored = MessageExt("T", compress_body(body, flag) if flag else body, sys_flag=flag)
    assert row(stored)["bodyText"] == body_text(body)


def test_a_body_that_cannot_be_unpacked_is_shown_as_it_is_stored() -> None:
    found = excerpt(b"no zlib stream", ZLIB, 5)
    assert (found.body, found.is_whole) == (b"no zl", False) and "unpacked" in found.note
    views = payload_views(excerpt(b"no zlib stream", ZLIB), "T", Bodies())
    assert views["text"] == "no zlib stream" and views["note"] and not views["more"]


@pytest.mark.parametrize("flag", [0, *KINDS])
@pytest.mark.parametrize("at", [0, 1000, (256 << 10) - 3, (256 << 10) - 1, 256 << 10, 1 << 20])
def test_text_is_found_where_pieces_meet_too(flag: int, at: int) -> None:
    body = bytearray(b"x" * ((1 << 20) + 10))
    body[at : at + 6] = b"needle"
    stored = compress_body(body, flag) if flag else bytes(body)
    assert has_text(stored, flag, b"needle")
    assert not has_text(stored, flag, b"needles")


def test_text_longer_than_a_piece_is_found_from_its_first_byte_on() -> None:
    body = random.Random(1).randbytes(800 << 10)
    stored = compress_body(body, ZLIB)
    for start in (0, 1, 100 << 10):
        assert has_text(stored, ZLIB, body[start : start + (600 << 10)])


def test_text_is_not_sought_without_end() -> None:
    stored = compress_body(bytes(SEARCHED_MAX + (1 << 20)) + b"needle", ZLIB)
    assert not has_text(stored, ZLIB, b"needle")
    assert has_text(stored, ZLIB, bytes(100))
    assert has_text(b"no zlib stream", ZLIB, b"zlib")


def test_the_guide_says_how_much_of_a_body_is_read() -> None:
    guide = (Path(__file__).resolve().parents[2] / "docs" / "console.md").read_text(encoding="utf-8")
    said = " ".join(guide.split())
    assert f"a list unpacks the first {4 * BODY_SHOWN + 1} bytes of a body" in said
    assert f"the page of a message and an export {SHOWN_MAX >> 20} MiB" in said
    assert f"looks at the first {SEARCHED_MAX >> 20} MiB of a body" in said


def test_json_longer_than_a_page_is_shown_as_json() -> None:
    body = json.dumps({"rows": [{"number": number} for number in range(100_000)]}).encode()
    assert len(body) > TEXT_SHOWN
    views = payload_views(excerpt(body, 0), "T", Bodies())
    assert views["best"] == "json" and views["cut"] and len(views["json"]) == TEXT_SHOWN
    assert views["json"].startswith('{\n  "rows": [\n    {\n      "number": 0\n')
