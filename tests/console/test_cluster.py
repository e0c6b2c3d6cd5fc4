"""The console on a real broker: what it shows is what was sent, and what it changes is changed for real consumers."""

from __future__ import annotations

import html
import http.client
import json
import re
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from mqlake.client import ConsumeFromWhere, ConsumerConfig, Message
from mqlake.client.blocking import Admin, Producer, PushConsumer
from mqlake.client.config import ClientConfig
from mqlake.client.consume.listener import ConsumeResult
from mqlake.console.app import ConsoleConfig
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.testing import RocketMQ
from tests.console.live import Browser, Served, serving
from tests.waiting import PATIENCE_S, until

TOPIC = "Orders"
COUNT = 120


@pytest.fixture(scope="module")
def broker() -> Iterator[RocketMQ]:
    with RocketMQ(brokerMessageTraceEnable="true") as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: RocketMQ) -> Iterator[Any]:
    with Admin(broker.namesrv) as found:
        yield found


@pytest.fixture(scope="module")
def served(broker: RocketMQ, admin: Any) -> Iterator[Served]:
    admin.create_topic(TOPIC, queues=3)
    until(lambda: TOPIC in admin.fetch_all_topic_list(), "the name server knows the topic")
    with Producer("orders", broker.namesrv) as producer:
        for number in range(COUNT):
            body = json.dumps({"number": number, "text": f"order {number}."}).encode()
            producer.send(Message(TOPIC, body, tags=f"Tag{number % 3}", keys=f"key-{number}"))
    where = ClientConfig(namesrv_addr=broker.namesrv)
    with serving(ConsoleConfig(where, allow_changes=True, sample_interval_s=0.5)) as found:
        yield found


@pytest.fixture(scope="module")
def browser(served: Served) -> Browser:
    return served.browser()


def numbers(browser: Browser, **query: object) -> list[int]:
    """The messages by their numbers, newest first, with all that follows."""
    found: list[int] = []
    while True:
        page = browser.data(f"/topics/{TOPIC}/messages", **query)
        found += [int(row["keys"].removeprefix("key-")) for row in page["messages"]]
        if page["next"] is None:
            return found
        query |= page["next"]


def test_topics_have_their_numbers(browser: Browser) -> None:
    [row] = browser.data("/topics", filter="order")["topics"]
    assert (row["name"], row["messages"], row["queues"], row["error"]) == (TOPIC, COUNT, 3, "")
    page = browser.data(f"/topics/{TOPIC}")
    assert page["messages"] == COUNT and len(page["queues"]) == 3
    assert sum(queue["messages"] for queue in page["queues"]) == COUNT


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, range(COUNT)),
        ({"tag": "Tag1"}, range(1, COUNT, 3)),
        ({"text": "order 11."}, [11]),
        ({"text": "order 1", "tag": "Tag0"}, [n for n in range(COUNT) if str(n)[0] == "1" and n % 3 == 0]),
        ({"key": "key-5"}, [5]),
    ],
)
def test_messages_are_found_newest_first_and_each_once(
    browser: Browser, query: dict[str, object], expected: Any
) -> None:
    found = numbers(browser, rows=50, **query)
    assert sorted(found) == list(expected)
    times = [row["storeTimestamp"] for row in browser.data(f"/topics/{TOPIC}/messages")["messages"]]
    assert times == sorted(times, reverse=True)


def test_a_message_says_all_about_itself(browser: Browser) -> None:
    [row] = browser.data(f"/topics/{TOPIC}/messages", key="key-7")["messages"]
    place = {"broker": row["broker"], "queue": row["queueId"], "offset": row["queueOffset"]}

    def page() -> Any:
        return browser.data(f"/topics/{TOPIC}/message", **place)

    found = page()
    assert found["payload"]["best"] == "json" and '"number": 7' in found["payload"]["json"]
    assert found["message"]["properties"]["KEYS"] == "key-7"
    assert found["place"]["physicalOffset"] == row["physicalOffset"] and found["place"]["fileKnown"]
    trace = until(lambda: page()["trace"], "the broker has written the trace")
    assert trace[0]["kind"] == "send" and trace[0]["good"]
    assert "TOOLS_CONSUMER" not in str(page()["trace"])  # the console's own look
    assert found["place"]["directory"].endswith("/commitlog")
    for message_id in (row["msgId"], row["uniqKey"]):
        assert (
            browser.data("/messages", id=message_id, topic=TOPIC)["message"]["queueOffset"]
            == row["queueOffset"]
        )
        assert numbers(browser, id=message_id) == [7]
    assert "<svg" in browser.get(f"/topics/{TOPIC}/message", **place).text


class Consumer:
    """A real push consumer that fails while it is told to."""

    def __init__(self, broker: RocketMQ, group: str) -> None:
        self.fails = True
        self.seen: list[tuple[str, bytes]] = []
        config = ConsumerConfig(
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, max_reconsume_times=0
        )
        self.client = PushConsumer(group, broker.namesrv, self._listen, config)
        self.client.subscribe(TOPIC)

    def _listen(self, messages: Any, _context: Any) -> ConsumeResult:
        if self.fails:
            return ConsumeResult.LATER
        self.seen += [(message.topic, message.body) for message in messages]
        return ConsumeResult.SUCCESS


def fields(answer: str) -> dict[str, str]:
    """The hidden fields of the form that confirms."""
    form = next(part for part in answer.split("<form") if 'name="confirm"' in part)
    found = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)"', form)
    return {name: html.unescape(value) for name, value in found if name != "csrf"}


def test_dead_letters_come_back_to_the_consumers_of_the_group(
    browser: Browser, broker: RocketMQ, admin: Any
) -> None:
    group = "billing"
    admin.create_subscription_group(SubscriptionGroupConfig(group_name=group, retry_max_times=0))
    page = f"/groups/{group}/dead-letters"
    assert not browser.data(page)["exists"]
    consumer = Consumer(broker, group)
    with consumer.client:
        until(lambda: browser.data(page)["total"] == COUNT, "every message is a dead letter")
        members = browser.data(f"/groups/{group}")["members"]
        assert len(members) == 1
        consumer.fails = False
        first = browser.data(page, rows=1)["messages"][0]
        one = {
            "action": "one",
            "broker": first["broker"],
            "queue": first["queueId"],
            "offset": first["queueOffset"],
        }
        answer = browser.post(page, **one)
        assert answer.status == 200 and consumer.seen == []  # only shown
        assert "%RETRY%billing" in answer.text
        assert browser.post(page, **fields(answer.text), confirm="true").status == 200
        until(lambda: len(consumer.seen) == 1, "the one comes back")
        assert consumer.seen[0][0] == TOPIC
        answer = browser.post(page, action="all")
        assert f"Send {COUNT} dead letters back?" in answer.text
        browser.post(page, **fields(answer.text), confirm="true")
        until(lambda: not browser.data(page)["job"]["running"], "all are sent")
        until(lambda: len(consumer.seen) == COUNT + 1, "all come back")
        assert len(set(consumer.seen)) == COUNT
    found = browser.data(page)
    assert found["waiting"] == 0 and found["total"] == COUNT and found["job"]["error"] == ""
    assert "Send 0 dead letters back?" in browser.post(page, action="all").text
    with_dlq = browser.get(f"/topics/{quote('%DLQ%' + group, safe='')}/export", max=1000)
    assert len(with_dlq.text.splitlines()) == COUNT


def test_offsets_move_only_after_a_look(browser: Browser, admin: Any) -> None:
    """After the group has consumed everything (the test before)."""
    for group in ("early", "late"):
        admin.create_subscription_group(SubscriptionGroupConfig(group_name=group))
    queues = browser.data(f"/topics/{TOPIC}")["queues"]

    def offsets(group: str) -> list[int]:
        stats = admin.examine_consume_stats(group, TOPIC)
        return [at.consumer_offset for _, at in sorted(stats.offset_table.items())]

    page = "/groups/early/offsets"
    ends, starts = [queue["maxOffset"] for queue in queues], [queue["minOffset"] for queue in queues]
    answer = browser.post(page, action="reset", topic=TOPIC, to="latest")
    assert f"{COUNT}</b>" in answer.text and offsets("early") == starts
    answer = browser.post(page, **fields(answer.text), confirm="true")
    assert answer.status == 200 and offsets("early") == ends
    queue = f"{queues[1]['broker']}/{queues[1]['queueId']}"
    answer = browser.post(page, action="reset", topic=TOPIC, to="offset", queue=queue, offset=1)
    assert offsets("early") == ends
    browser.post(page, **fields(answer.text), confirm="true")
    assert offsets("early") == [ends[0], 1, ends[2]]
    answer = browser.post(page, action="copy", topic=TOPIC, target="late")
    assert offsets("late") == starts
    browser.post(page, **fields(answer.text), confirm="true")
    assert offsets("late") == [ends[0], 1, ends[2]]
    answer = browser.post(page, action="reset", topic=TOPIC, to="time", time="2001-01-01")
    browser.post(page, **fields(answer.text), confirm="true")
    assert offsets("early") == starts
    assert (
        browser.post(page, action="reset", topic=TOPIC, to="offset", queue=queue, offset=10**9).status == 400
    )
    assert browser.post(page, action="reset", topic=TOPIC, to="never").status == 400


def test_lag_is_sampled_and_sorted(browser: Browser) -> None:
    """The group `late` is behind (the test before)."""
    rows = until(
        lambda: (
            (rows := browser.data("/groups", sort="lag")["groups"]) and rows[0]["behind"] == COUNT and rows
        ),
        "a sample since the reset",
    )
    assert rows[0]["name"] == "early" and rows[0]["history"][-1] == COUNT
    behind = COUNT + browser.data("/groups/late")["behind"]
    [first] = browser.data("/topics", sort="lag", rows=1)["topics"]
    assert (first["name"], first["behind"]) == (TOPIC, behind)
    assert browser.data("/")["behind"] >= COUNT
    assert "<polyline" in browser.get("/groups/early").text


def test_one_topic_and_its_queues_have_trends(browser: Browser, broker: RocketMQ, admin: Any) -> None:
    """Also a topic that no group consumes, once somebody looks at it; the lag of a group in each queue."""
    admin.create_topic("Quiet", queues=2)

    def trend() -> Any:
        return browser.data("/topics/Quiet")

    until(lambda: trend()["rates"], "the topic is sampled")
    with Producer("quiet", broker.namesrv) as producer:
        for number in range(40):
            producer.send(Message("Quiet", b"%d" % number))
    found = until(lambda: (page := trend())["rates"][-1] > 0 and page, "its rate is seen")
    assert found["history"] == [0] * (len(found["rates"]) + 1) and len(found["queues"]) == 2
    assert sum(queue["rates"][-1] for queue in found["queues"]) == pytest.approx(found["rates"][-1], abs=0.1)
    assert browser.get("/topics/Quiet").text.count("<polyline") == 4
    of_group = browser.data("/groups/early")
    assert of_group["history"][-1] == sum(queue["history"][-1] for queue in of_group["queues"]) == COUNT


def test_a_sent_message_is_stored_as_it_was_typed(browser: Browser, admin: Any) -> None:
    page = f"/topics/{TOPIC}/send"
    answer = browser.post(page, body="héllo\r\n<b>", tags="Tag9", keys="typed", properties="a=1\nb = 2 = 3")
    assert answer.status == 200 and "Stored" in answer.text
    [message] = admin.query_message(TOPIC, "typed")
    assert message.body == "héllo\n<b>".encode() and message.tags == "Tag9"
    assert (message.properties["a"], message.properties["b"]) == ("1", "2 = 3")
    assert browser.post(page, body="").status == 400
    assert browser.post(page, body="x", properties="nonsense").status == 400
    assert browser.post(page, body="x", queue="nowhere").status == 400


def test_the_live_view_gets_what_is_sent_now(broker: RocketMQ, served: Served, browser: Browser) -> None:
    host, port = served.server.address.split(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
    connection.request("GET", f"/topics/{TOPIC}/tail/events?tag=Live")
    answer = connection.getresponse()
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.readline() == b": from here on\n"

    def send() -> None:
        with Producer("live", broker.namesrv) as producer:
            producer.send(Message(TOPIC, b"other", tags="Dead", keys="key-0"))
            producer.send(Message(TOPIC, b"<i>now</i>", tags="Live", keys="key-0"))

    sending = threading.Thread(target=send)
    sending.start()
    line = b""
    while not line.startswith(b"data: "):
        line = answer.readline()
    sending.join()
    connection.close()
    row = json.loads(line.removeprefix(b"data: "))
    assert row["bodyText"] == "<i>now</i>" and row["tags"] == "Live"
    assert browser.get(row["href"]).status == 200


def test_a_setting_changes_only_after_a_look(browser: Browser) -> None:
    [broker] = browser.data("/brokers")["brokers"]
    page = f"/brokers/{broker['address']}/settings"

    def now() -> str:
        return str(browser.data(page, filter="fileReservedTime")["settings"]["fileReservedTime"])

    before = now()
    answer = browser.post(page, key="fileReservedTime", value="71")
    assert answer.status == 200 and now() == before
    answer = browser.post(page, **fields(answer.text), confirm="true")
    assert answer.status == 200 and now() == "71", answer.text
    assert browser.data(page)["pendingRestart"] == {}
    shown = {}
    for number in range(1, 100):
        found = browser.data(page, page=number, rows=1000)
        shown |= found["settings"]
        if found["place"]["pages"] == number:
            break
    assert not any("password" in key.lower() or "secret" in key.lower() for key in shown)
    assert browser.get("/brokers/127.0.0.1:1", format="json").status == 404  # no address of the cluster
    assert browser.post(page, key="initAuthenticationUser", value="x").status == 500


def test_a_read_only_console_refuses_every_change(broker: RocketMQ) -> None:
    with serving(ConsoleConfig(ClientConfig(namesrv_addr=broker.namesrv))) as served:
        browser = served.browser()
        address = browser.data("/brokers")["brokers"][0]["address"]
        for page in (
            f"/topics/{TOPIC}/send",
            "/groups/early/offsets",
            "/groups/billing/dead-letters",
            "/users",
            f"/brokers/{address}/settings",
        ):
            answer = browser.post(page, body="x", topic=TOPIC, to="latest", action="all", confirm="true")
            assert answer.status == 403 and "--allow-changes" in answer.text, page
            text = browser.get(page).text
            assert "read-only" in text and 'name="confirm"' not in text


def test_a_cluster_that_is_gone_is_said_in_words() -> None:
    with serving(ConsoleConfig(ClientConfig(namesrv_addr="127.0.0.1:1", timeout_s=1))) as served:
        answer = served.browser().get("/topics", format="json")
        assert answer.status == 502 and "127.0.0.1:1" in answer.json["error"]
