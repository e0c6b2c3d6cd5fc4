"""The console in a real Chromium: 10,000 topics, keys, a narrow window, the layout, and nothing the policy forbids."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mqlake.client import Message
from mqlake.client.blocking import Producer, PullConsumer
from mqlake.client.config import ClientConfig
from mqlake.console.app import ConsoleConfig
from mqlake.console.store_files import named
from tests.cli.test_serve import MQLAKE
from tests.console.chromium import Chromium
from tests.console.live import Served, serving
from tests.waiting import PATIENCE_S, until

TOPICS = 10_000
LAYOUT = Path(__file__).parent / "layout.json"
XSS = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A broker that knows 10,000 topics."""
    data = tmp_path_factory.mktemp("cluster")
    config = data / "broker-0" / "config"
    config.mkdir(parents=True)
    table = {
        f"topic-{number:05}": {
            "topicName": f"topic-{number:05}",
            "readQueueNums": 1,
            "writeQueueNums": 1,
            "perm": 6,
        }
        for number in range(TOPICS)
    }
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": table}))
    settings = ["mappedFileSizeCommitLog=1m", "mappedFileSizeConsumeQueue=60000", "diskMaxUsedSpaceRatio=99"]
    settings += ["maxHashSlotNum=5000", "maxIndexNum=20000"]
    command = [*MQLAKE, "serve", "--json", "--store", str(data), "--namesrv-port", "0", "--port", "0"]
    command += ["--grpc-port", "-1", *(f"--set={each}" for each in settings)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
    assert process.stdout is not None
    found = json.loads(process.stdout.readline())
    yield found
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def served(cluster: dict[str, Any]) -> Iterator[Served]:
    with Producer("browser", cluster["namesrv"]) as producer:
        for number in range(70):
            producer.send(
                Message("topic-00007", f'{{"number": {number}}}'.encode(), tags="Tag", keys=f"k{number}")
            )
        producer.send(Message("topic-00007", XSS.encode(), tags="<b>", keys="hostile"))
    with PullConsumer("billing", cluster["namesrv"]) as consumer:
        consumer.assign(queues := consumer.fetch_message_queues("topic-00007"))
        until(lambda: consumer.max_offset(queues[0]) >= 20, "the messages are in the queue")
        consumer.seek(queues[0], 20)
        consumer.poll()
        consumer.commit()
    where = ClientConfig(namesrv_addr=cluster["namesrv"])
    stores = named([str(Path(cluster["store"]) / "broker-0")])
    with serving(ConsoleConfig(where, stores, allow_changes=True)) as found:
        yield found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    with Chromium(tmp_path_factory.mktemp("chromium")) as found:
        found.resize(1280, 900)
        yield found


def paths(served: Served) -> dict[str, str]:
    """A page of each kind."""
    browser = served.browser()
    [broker] = browser.data("/brokers")["brokers"]
    [hostile] = browser.data("/topics/topic-00007/messages", key="hostile")["messages"]
    place = f"broker={hostile['broker']}&queue={hostile['queueId']}&offset={hostile['queueOffset']}"
    return {
        "overview": "/",
        "topics": "/topics",
        "topic": "/topics/topic-00007",
        "messages": "/topics/topic-00007/messages",
        "message": f"/topics/topic-00007/message?{place}",
        "tail": "/topics/topic-00007/tail",
        "send": "/topics/topic-00007/send",
        "groups": "/groups",
        "group": "/groups/billing",
        "offsets": "/groups/billing/offsets",
        "dead letters": "/groups/billing/dead-letters",
        "brokers": "/brokers",
        "broker": f"/brokers/{broker['address']}",
        "settings": f"/brokers/{broker['address']}/settings",
        "users": "/users",
        "store": "/stores/broker-0",
        "queues": "/stores/broker-0/queues",
        "log": "/stores/broker-0/log",
        "record": f"/stores/broker-0/record?offset={hostile['physicalOffset']}",
        "help": "/help",
    }


BOXES = """(() => {
  const seen = [];
  const all = "header.top, header.top nav, .aside, main, h1, nav.sub, .tiles, .tiles > div, form.filter, " +
    ".search-form, figure, table, .payload, dl.fields, .columns > *, .pager, footer.bottom";
  for (const each of document.querySelectorAll(all)) {
    const box = each.getBoundingClientRect();
    if (!box.width || !box.height) continue;
    const name = each.tagName.toLowerCase() + (each.classList[0] ? "." + each.classList[0] : "");
    seen.push([name, box.left / innerWidth, box.right / innerWidth]);
  }
  return seen;
})()"""
"""What a page is made of, in order: its name, and where it begins and ends as a share of the window's width."""

FAINT = """(() => {
  const parse = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => [r, g, b].map(v => linear(v / 255))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = each => {
    for (let at = each; at; at = at.parentElement) {
      const color = parse(getComputedStyle(at).backgroundColor);
      if (color.length < 4 || color[3] > 0.9) return color;
    }
    return parse(getComputedStyle(document.documentElement).backgroundColor);
  };
  const faint = [];
  for (const each of document.querySelectorAll("main *, header *, footer *")) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !each.getClientRects().length || each.closest("svg, .hex")) continue;
    const [a, b] = [light(parse(getComputedStyle(each).color)), light(ground(each))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(`${each.textContent.trim().slice(0, 30)} ${ratio.toFixed(2)}`);
  }
  return faint;
})()"""
"""Text with less contrast than 4.5 to 1, as WCAG AA wants it."""


def alike(found: list[Any], expected: list[Any]) -> bool:
    """Fonts differ between machines, so edges may differ a little; a wide table ends where its numbers let it."""
    return [name for name, *_ in found] == [name for name, *_ in expected] and all(
        abs(min(mine, 1) - min(wanted, 1)) < 0.06
        for one, other in zip(found, expected, strict=True)
        for mine, wanted in zip(one[1:], other[1:], strict=True)
    )


@pytest.mark.nightly
def test_every_page_keeps_its_layout_and_the_policy(served: Served, chromium: Chromium) -> None:
    """With MQLAKE_LAYOUT set, what is seen becomes what is expected."""
    expected = json.loads(LAYOUT.read_text()) if LAYOUT.exists() else {}
    found: dict[str, Any] = {}
    for name, path in paths(served).items():
        chromium.open(served.url + path)
        assert chromium.policy_violations() == [], path
        assert "owned" not in chromium.run("document.title"), path
        for width, height in ((1280, 900), (390, 844)):
            chromium.resize(width, height)
            assert chromium.run("document.documentElement.scrollWidth") <= width, (
                f"{path} is wider than {width}"
            )
            boxes = chromium.run(BOXES)
            found[f"{name} {width}"] = [[box, round(left, 3), round(right, 3)] for box, left, right in boxes]
        for scheme in ("light", "dark"):
            chromium.scheme(scheme)
            assert chromium.run(FAINT) == [], f"{path}, {scheme}"
        chromium.resize(1280, 900)
    if "MQLAKE_LAYOUT" in os.environ:
        lines = [f"{json.dumps(name)}: {json.dumps(boxes)}" for name, boxes in found.items()]
        LAYOUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    different = {name: boxes for name, boxes in found.items() if not alike(boxes, expected.get(name, []))}
    assert not different or "MQLAKE_LAYOUT" in os.environ


@pytest.mark.parametrize("path", ["/topics", "/groups"])
def test_lists_are_level_and_their_names_are_readable(served: Served, chromium: Chromium, path: str) -> None:
    middle = "(box => (box.top + box.bottom) / 2)(document.querySelector('{}').getBoundingClientRect())"
    chromium.open(served.url + path)
    chromium.resize(1280, 900)
    filter_box, pills = (chromium.run(middle.format(each)) for each in ("form.filter input", "nav.sub a"))
    assert abs(filter_box - pills) <= 1
    chromium.resize(390, 844)
    assert chromium.run("document.querySelector('tr[data-row] td').offsetWidth") >= 120
    chromium.resize(1280, 900)


def test_ten_thousand_topics_are_paged_filtered_and_walked_by_keys(
    served: Served, chromium: Chromium
) -> None:
    chromium.open(f"{served.url}/topics")
    rows = "document.querySelectorAll('tr[data-row]').length"
    assert chromium.run(rows) == 50
    assert "10,0" in chromium.run("document.querySelector('.pager').innerText")
    first = chromium.run("document.querySelector('tr[data-row] a').innerText")
    chromium.press("j", "j", "k", "j")
    assert (
        chromium.run(
            "[...document.querySelectorAll('tr[data-row]')].indexOf(document.querySelector('.current'))"
        )
        == 1
    )
    loads = chromium.loads
    chromium.press("n")
    chromium.wait_for_load(loads)
    assert chromium.run("document.querySelector('tr[data-row] a').innerText") > first
    chromium.press("/")
    assert chromium.run("document.activeElement.name") == "filter"
    chromium.type("0777")
    until(lambda: chromium.run(rows) == 11, "the filter is applied while typing")  # 00777, 07770 to 07779
    assert "filter=0777" in chromium.run("location.search")
    chromium.press("Escape", "j")
    loads = chromium.loads
    chromium.press("Enter")
    chromium.wait_for_load(loads)
    assert chromium.run("location.pathname") == "/topics/topic-00777"
    loads = chromium.loads
    chromium.press("?")
    chromium.wait_for_load(loads)
    assert chromium.run("location.pathname") == "/help"
    loads = chromium.loads
    chromium.press("g", "t")
    chromium.wait_for_load(loads)
    assert chromium.run("location.pathname") == "/topics"


def test_bytes_and_fields_light_up_together_and_bodies_have_views(served: Served, chromium: Chromium) -> None:
    chromium.open(served.url + paths(served)["record"])
    field = "document.querySelector('tr[data-field=\"6\"]')"
    chromium.run(f"{field}.dispatchEvent(new MouseEvent('mouseover', {{bubbles: true}}))")
    assert chromium.run("document.querySelectorAll('.lit').length") >= 2
    assert chromium.run("document.querySelector('[data-panel=hex]').hidden")
    chromium.run("document.querySelector('[data-tab=hex]').click()")
    assert not chromium.run("document.querySelector('[data-panel=hex]').hidden")
    assert chromium.run("document.querySelector('[data-panel=text]').innerText") == XSS
    assert chromium.policy_violations() == []


def test_the_live_view_shows_what_comes_as_text(
    cluster: dict[str, Any], served: Served, chromium: Chromium
) -> None:
    chromium.open(f"{served.url}/topics/topic-00007/tail")
    until(
        lambda: chromium.run("document.querySelector('[data-tail-state]').innerText") == "live", "it is live"
    )
    with Producer("browser", cluster["namesrv"]) as producer:
        producer.send(Message("topic-00007", XSS.encode(), keys="k"))
    until(
        lambda: chromium.run("document.querySelectorAll('.tail tbody tr').length") == 1,
        "the message is shown",
    )
    assert "<script>" in chromium.run("document.querySelector('.tail tbody').innerText")
    assert (
        chromium.policy_violations() == [] and chromium.run("document.title") == "topic-00007 · Live · mqlake"
    )
    chromium.run("document.querySelector('[data-tail-stop]').click()")
    assert chromium.run("document.querySelector('[data-tail-state]').innerText") == "stopped"
