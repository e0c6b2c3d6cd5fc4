"""The console on a real broker: what it shows is what was sent, and what it changes is changed for real consumers."""

from __future__ import annotations

import html
import http.client
import json
import re
import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any
from urllib.parse import quote

import pytest

from mqlake import __version__
from mqlake.base.clock import now_ms
from mqlake.client import ConsumeFromWhere, ConsumerConfig, Message
from mqlake.client.blocking import Admin, Producer, PushConsumer
from mqlake.client.config import ClientConfig
from mqlake.client.consume.listener import ConsumeResult
from mqlake.client.overview import DAY_MS, stored_since
from mqlake.console.app import ConsoleConfig
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.testing import RocketMQ
from tests.console.live import Browser, Served, serving
from tests.waiting import PATIENCE_S, trying, until

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
    for _ in trying("the last page"):
        page = browser.data(f"/topics/{TOPIC}/messages", **query)
        found += [int(row["keys"].removeprefix("key-")) for row in page["messages"]]
        if page["next"] is None:
            break
        query |= page["next"]
    return found


def test_topics_have_their_numbers(browser: Browser) -> None:
    [row] = browser.data("/topics", filter="order")["topics"]
    assert (row["name"], row["messages"], row["queues"], row["error"]) == (TOPIC, COUNT, 3, "")
    page = browser.data(f"/topics/{TOPIC}")
    assert page["messages"] == page["in24h"] == COUNT and len(page["queues"]) == 3
    assert sum(queue["messages"] for queue in page["queues"]) == COUNT


def test_messages_since_a_time_are_counted_by_their_offsets(browser: Browser, admin: Any) -> None:
    """Also of a queue that ends before, and of one that begins after; what brokers count lags by minutes."""
    admin.create_topic("Ages", queues=3)
    until(lambda: browser.get("/topics/Ages").status == 200, "the name server knows the topic")

    def send(count: int, *queue_ids: int) -> int:
        """The store time of the first of them."""
        for queue_id in queue_ids:
            for number in range(count):
                browser.post("/topics/Ages/send", body=number, queue=f"broker-0/{queue_id}")
        return min(
            row["storeTimestamp"]
            for row in browser.data("/topics/Ages/messages", rows=1000)["messages"][:count]
        )

    async def since(inner: Any, time: int) -> int:
        return await stored_since(inner, await inner.examine_topic_stats("Ages"), time)

    first = send(3, 0, 1)
    until(lambda: now_ms() > first + 1000, "another millisecond has come")
    later = send(5, 1)
    last = send(2, 2)
    assert [admin.ask(lambda a, t=t: since(a, t)) for t in (0, later, last, last + DAY_MS)] == [13, 7, 2, 0]
    assert browser.data("/topics/Ages")["in24h"] == 13


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
        assert line, "the stream ended"
    sending.join()
    connection.close()
    row = json.loads(line.removeprefix(b"data: "))
    assert row["bodyText"] == "<i>now</i>" and row["tags"] == "Live"
    assert browser.get(row["href"]).status == 200


def test_topics_and_groups_come_and_go_only_after_a_look(
    browser: Browser, broker: RocketMQ, admin: Any
) -> None:
    def topics() -> list[str]:
        return [row["name"] for row in browser.data("/topics", filter="Fresh")["topics"]]

    def groups() -> list[str]:
        return [row["name"] for row in browser.data("/groups", filter="fresh")["groups"]]

    answer = browser.post("/topics", action="create", name="Fresh", queues=2, type="FIFO")
    assert "Create the topic Fresh for FIFO messages with 2 queues on broker-0?" in answer.text
    assert topics() == []
    browser.post("/topics", **fields(answer.text), confirm="true")
    until(lambda: topics() == ["Fresh"], "the topic is there")
    config = admin.ask(lambda a: a.brokers.get_topic_config(broker.broker, "Fresh"))
    assert config.write_queue_nums == 2 and config.attributes["message.type"] == "FIFO"
    answer = browser.post("/topics", action="create", name="Fresh")
    assert answer.status == 400 and "there is a topic Fresh already" in answer.text
    answer = browser.post("/groups", action="create", name="fresh", retries=3, inOrder="true")
    assert "Create the group fresh (in order, 3 retries)" in answer.text and groups() == []
    browser.post("/groups", **fields(answer.text), confirm="true")
    assert groups() == ["fresh"]
    config = admin.ask(lambda a: a.brokers.get_subscription_group_config(broker.broker, "fresh"))
    assert config.retry_max_times == 3 and config.consume_message_orderly
    assert browser.post("/groups", action="create", name="fresh").status == 400

    browser.post("/topics/Fresh/send", body="1", queue="broker-0/0")
    until(lambda: browser.data("/topics/Fresh")["messages"] == 1, "the message is there")
    answer = browser.post("/groups/fresh/offsets", action="reset", topic="Fresh", to="latest")
    browser.post("/groups/fresh/offsets", **fields(answer.text), confirm="true")
    answer = browser.post("/topics", action="delete", name="Fresh")
    assert "1 message can no longer be read" in answer.text and "lost: fresh." in answer.text
    assert topics() == ["Fresh"]
    answer = browser.post("/groups", action="delete", name="fresh")
    assert "Its offsets in 1 topic are lost." in answer.text and groups() == ["fresh"]
    browser.post("/groups", **fields(answer.text), confirm="true")
    assert groups() == []
    browser.post("/topics", action="delete", name="Fresh", confirm="true")
    until(lambda: topics() == [], "the topic is gone")
    for page, name, status in (
        ("/topics", "Fresh", 404),
        ("/topics", "SCHEDULE_TOPIC_XXXX", 400),
        ("/groups", "fresh", 404),
        ("/groups", "TOOLS_CONSUMER", 400),
    ):
        assert browser.post(page, action="delete", name=name, confirm="true").status == status, name
        assert browser.post(page, action="rename", name=name).status == 404


def test_groups_of_rocketmq_are_listed_when_asked_for(browser: Browser) -> None:
    names = [row["name"] for row in browser.data("/groups", rows=1000)["groups"]]
    assert "billing" in names
    system = ("CID_RMQ_SYS", "TOOLS_", "CID_ONSAPI", "CID_MQLAKE")
    assert not any(name.startswith(system) for name in names)
    shown = [row["name"] for row in browser.data("/groups", rows=1000, system=1)["groups"]]
    assert {"TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "CID_MQLAKE_REDRIVE", *names} <= set(shown)
    overview = [row["name"] for row in browser.data("/")["groups"]]
    assert overview and not any(name.startswith(system) for name in overview)


def test_dead_letters_are_counted_where_groups_are_listed(browser: Browser) -> None:
    """`billing` has had every message as a dead letter (a test before)."""
    rows = {row["name"]: row["deadLetters"] for row in browser.data("/groups", rows=1000)["groups"]}
    assert rows["billing"] == COUNT and rows["early"] == 0
    assert browser.data("/groups/billing")["deadLetters"] == COUNT
    assert f">{COUNT}</a>" in browser.get("/groups").text


@pytest.mark.parametrize(
    ("page", "typed", "kept"),
    [
        (
            "/topics",
            {"action": "create", "name": "two words", "queues": 5, "type": "FIFO"},
            ["two words", "5"],
        ),
        ("/groups", {"action": "create", "name": "two words", "retries": 7}, ["two words", "7"]),
        (
            f"/topics/{TOPIC}/send",
            {"body": "typed <long>", "keys": "k1", "queue": "nowhere", "delay": 3},
            ["k1", "nowhere", "3"],
        ),
        (
            "/groups/early/offsets",
            {"action": "reset", "topic": "No", "to": "time", "time": "never"},
            ["never"],
        ),
        ("/groups/early/offsets", {"action": "copy", "topic": TOPIC, "target": "nobody"}, ["nobody"]),
    ],
)
def test_a_form_that_fails_keeps_what_was_typed(
    browser: Browser, page: str, typed: dict[str, object], kept: list[str]
) -> None:
    """And says why, on the same page; a script gets the error alone."""
    answer = browser.post(page, **typed)
    assert answer.status in (400, 404) and 'role="alert"' in answer.text
    for value in kept:
        assert f'value="{value}"' in answer.text, value
    assert answer.text.count("typed &lt;long&gt;") == ("body" in typed)
    assert "FIFO" not in typed.values() or "<option selected>FIFO" in answer.text
    answer = browser.post(f"{page}?format=json", **typed)
    assert answer.json.keys() == {"error", "status"}


def test_a_message_is_sent_so_often_and_so_late_as_was_asked(browser: Browser, admin: Any) -> None:
    admin.create_topic("Later", queues=1)
    until(lambda: browser.get("/topics/Later").status == 200, "the name server knows the topic")
    answer = browser.post("/topics/Later/send", body="now", count=3)
    assert "3 messages stored" in answer.text
    until(lambda: browser.data("/topics/Later")["messages"] == 3, "all three are there")
    rows = browser.data("/topics/Later/messages")["messages"]
    assert len({row["uniqKey"] for row in rows}) == 3
    answer = browser.post("/topics/Later/send", body="later", delay=1)
    assert "due in 1 s" in answer.text
    [row] = until(
        lambda: browser.data("/topics/Later/messages", text="later")["messages"], "it is due, and there"
    )
    place = {"broker": row["broker"], "queue": row["queueId"], "offset": row["queueOffset"]}
    message = browser.data("/topics/Later/message", **place)["message"]
    assert message["storeTimestamp"] - message["bornTimestamp"] >= 900  # timers count tenths of seconds
    for wrong in ({"count": 0}, {"count": 1001}, {"delay": -1}, {"delay": 10**9}):
        assert browser.post("/topics/Later/send", body="x", **wrong).status == 400


def test_a_body_can_be_kept_whole(browser: Browser, broker: RocketMQ) -> None:
    """Also one that no page shows whole, which the client has compressed."""
    body = json.dumps([{"number": number} for number in range(50_000)]).encode()
    with Producer("orders", broker.namesrv) as producer:
        sent = producer.send(Message("Later", body, keys="large"))
    [row] = until(lambda: browser.data("/topics/Later/messages", key="large")["messages"], "it is indexed")
    place = {"broker": row["broker"], "queue": row["queueId"], "offset": row["queueOffset"]}
    shown = browser.data("/topics/Later/message", **place)
    assert shown["payload"]["best"] == "json" and shown["payload"]["cut"]
    answer = browser.get("/topics/Later/message/body", **place)
    assert answer.body == body and sent.msg_id in answer.headers["content-disposition"]
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert browser.get("/topics/Later/message/body", **place | {"offset": 10**6}).status == 400


def test_a_page_says_what_it_shows_when_and_by_which_version(browser: Browser) -> None:
    page = browser.get(f"/topics/{TOPIC}").text
    assert f"<title>{TOPIC} · Topic · mqlake</title>" in page
    zone = datetime.now().astimezone().isoformat()[-6:]
    assert f"mqlake {__version__}" in page and f"times are in UTC{zone}" in page


def test_plots_have_axes(browser: Browser) -> None:
    page = until(
        lambda: (page := browser.get("/groups/early").text).count('<div class="x"><span>') == 2 and page,
        "there are samples",
    )
    tops = re.findall(r'<div class="y"><span>([^<]+)</span><span>0</span></div>', page)
    peaks = re.findall(r"peak ([^ ]+) ·", page)
    assert tops[0] == peaks[0] and int(tops[0].replace(",", "")) >= COUNT
    assert re.search(r'<div class="x"><span>\d\d:\d\d:\d\d</span>', page)


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
    answer = browser.post(
        f"{page}?filter=fileReservedTime", key="fileReservedTime", value="long", confirm="true"
    )
    assert answer.status >= 400 and 'value="long"' in answer.text and now() == "71"
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
            "/topics",
            "/groups",
        ):
            answer = browser.post(page, body="x", topic=TOPIC, to="latest", action="all", confirm="true")
            assert answer.status == 403 and "--allow-changes" in answer.text, page
            text = browser.get(page).text
            assert "read-only" in text and 'name="confirm"' not in text


def test_a_cluster_that_is_gone_is_said_in_words() -> None:
    with serving(ConsoleConfig(ClientConfig(namesrv_addr="127.0.0.1:1", timeout_s=1))) as served:
        answer = served.browser().get("/topics", format="json")
        assert answer.status == 502 and "127.0.0.1:1" in answer.json["error"]
