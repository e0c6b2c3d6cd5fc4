from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Iterator
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from mqlake.cli.admin import COMMANDS, MQADMIN_NAMES, admin
from mqlake.cli.admin.group import reset_time
from mqlake.cli.admin.topic import parse_attributes
from mqlake.cli.main import cli
from mqlake.client.admin import Admin
from mqlake.message.topics import is_system_topic
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("serve"), {"brokerName": "broker-0"}) as started:
        yield started


def invoke(broker: MqlakeBroker, *args: str, **options: Any) -> Result:
    return CliRunner().invoke(
        cli, ["admin", *args, "--timeout", str(PATIENCE_S)], env={"NAMESRV_ADDR": broker.namesrv}, **options
    )


def shown(broker: MqlakeBroker, *args: str, **options: Any) -> str:
    result = invoke(broker, *args, **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def told(broker: MqlakeBroker, *args: str) -> Any:
    return json.loads(shown(broker, *args, "--json"))


async def commit(broker: MqlakeBroker, group: str, topic: str, offset: int) -> None:
    async with Admin(broker.namesrv) as client:
        await client.brokers.update_consumer_offset(broker.address, group, topic, 0, offset)


# --- every command, in words and as JSON


def test_topics(broker):
    assert shown(broker, "topic", "create", "T", "-q", "2").strip() == "T: 2 queues, rw on broker-0"
    assert told(broker, "updateTopic", "-t", "U", "-r", "3", "-c", "DefaultCluster")["brokers"] == [
        "broker-0"
    ]
    assert shown(broker, "topic", "list").split() == told(broker, "topicList") == ["T", "U"]
    assert "TBW102" in told(broker, "topic", "list", "-a")
    assert told(broker, "topic", "list", "-c", "DefaultCluster") == ["T", "U"]
    assert re.search(r"broker-0\s+DefaultCluster\s+2\s+2\s+rw\s+0=", shown(broker, "topic", "route", "T"))
    assert told(broker, "topic", "route", "T")["queueDatas"][0]["perm"] == 6
    assert shown(broker, "topic", "clusters", "T").split() == ["DefaultCluster"]
    assert "rw → r-" in shown(broker, "topic", "perm", "T", "-p", "r")
    assert told(broker, "topic", "perm", "T", "-p", "rw") == [
        {"broker": "broker-0", "before": "r-", "now": "rw"}
    ]
    assert told(broker, "topic", "route", "T")["queueDatas"][0]["readQueueNums"] == 2
    assert len(told(broker, "topic", "status", "T")["queues"]) == 2
    status = shown(broker, "topic", "status", "T")
    assert re.search(r"broker-0\s+1\s+0\s+0\s+0\s+-", status) and "\n0 messages, 0.00 messages/s" in status
    assert told(broker, "topic", "status", "T")["messages"] == 0
    assert shown(broker, "topic", "delete", "U", "--yes").strip() == "U: deleted"


def test_messages(broker, tmp_path):
    shown(broker, "topic", "create", "M", "-q", "1")
    sent = told(broker, "message", "send", "M", "-p", "hällo", "-k", "k1 k2", "-c", "tag")
    assert (sent["queueOffset"], sent["broker"]) == (0, "broker-0")
    result = invoke(broker, "message", "send", "M", input=b"\xff\x00 not text")
    assert result.exit_code == 0 and "queueOffset  1" in result.stdout
    shown(broker, "topic", "create", "Deleted", "-q", "1")
    assert told(broker, "message", "send", "Deleted", "-p", "", "--allow-empty-body")["queueOffset"] == 0
    view = ("message", "view", sent["msgId"])
    until(lambda: invoke(broker, "message", "by-key", "M", "-k", "k2").exit_code == 0, "it is in the index")
    assert "tags=tag  keys=k1 k2" in shown(broker, "queryMsgByKey", "-t", "M", "-k", "k1")
    nothing = invoke(broker, "message", "by-key", "M", "-k", "none")
    assert (nothing.exit_code, nothing.stdout) == (1, "")
    too_early = invoke(broker, "message", "by-key", "M", "-k", "k1", "-e", "2001-01-01", "--json")
    assert too_early.exit_code == 1 and json.loads(too_early.stdout) == []
    (found,) = told(broker, "message", "by-unique-key", "M", "-i", sent["uniqKey"])
    assert base64.b64decode(found["body"]).decode() == "hällo"
    text = shown(broker, *view)
    assert "client's id" in text and text.rstrip().endswith("hällo")
    assert told(broker, "queryMsgById", "-i", sent["msgId"])["keys"] == "k1 k2"
    assert told(broker, "message", "view", sent["uniqKey"], "-t", "M")["msgId"] == sent["msgId"]
    assert invoke(broker, *view, "--body-file", "-").stdout_bytes == "hällo".encode()
    place = ("M", "-b", "broker-0", "-i", "0", "-o", "1")
    shown(broker, "message", "by-offset", *place, "--body-file", str(tmp_path / "body"))
    assert (tmp_path / "body").read_bytes() == b"\xff\x00 not text"


def test_groups(broker):
    shown(broker, "topic", "create", "C", "-q", "1")
    shown(broker, "message", "send", "C", "-p", "x")
    assert shown(broker, "group", "create", "GID_c", "-r", "3").strip() == "GID_c: on broker-0"
    shown(broker, "updateSubGroup", "-g", "GID_c", "-s", "false")
    config = told(broker, "group", "config", "GID_c")["broker-0"]
    assert (config["retryMaxTimes"], config["consumeEnable"]) == (3, False)
    assert "retryMaxTimes" in shown(broker, "getConsumerConfig", "-g", "GID_c")
    assert re.search(r"GID_c\s+no\s+3\s+1\s+broker-0", shown(broker, "group", "list"))
    for _ in range(200):
        if told(broker, "topic", "status", "C")["queues"][0]["maxOffset"]:
            break
    assert (
        told(broker, "group", "reset-offset", "GID_c", "-t", "C", "-s", "latest", "--yes")[0]["offset"] == 1
    )
    assert (
        told(broker, "group", "reset-offset", "GID_c", "-t", "C", "-s", "earliest", "--yes")[0]["offset"] == 0
    )
    one = ("-q", "0", "-o", "1", "-b", "broker-0")
    moved = told(broker, "group", "reset-offset", "GID_c", "-t", "C", *one, "--yes")
    assert [(row["before"], row["offset"]) for row in moved] == [(0, 1)]  # so that it can be taken back
    assert "C      broker-0  0           1       1" in shown(
        broker, "group", "reset-offset", "GID_c", "-t", "C", *one, "--yes"
    )
    assert told(broker, "skipAccumulatedMessage", "-g", "GID_c", "-t", "C", "--yes")[0]["offset"] == 1
    assert told(broker, "consumerProgress", "-g", "GID_c")["behind"] == 0
    progress = shown(broker, "group", "progress", "GID_c", "--clients")
    assert "0 behind" in progress and "pulled ahead" in progress
    assert "GID_c" in shown(broker, "group", "progress")
    shown(broker, "group", "create", "GID_e")
    asyncio.run(commit(broker, "GID_e", "C", 5))
    found = told(broker, "consumerProgress", "-g", "GID_e")
    assert (found["behind"], found["beyond"], found["queues"][0]["beyond"]) == (0, 4, 4)
    assert "will skip what comes there" in invoke(broker, "group", "progress", "GID_e").stderr
    assert {row["group"] for row in told(broker, "group", "progress")} >= {"GID_c"}
    shown(broker, "group", "clone-offset", "-s", "GID_c", "-d", "GID_d", "-t", "C", "--yes")
    assert told(broker, "group", "connections", "GID_c")["connections"] == []
    for command in ("connections", "status"):
        assert shown(broker, "group", command, "GID_c").strip() == "no consumer of GID_c is connected"
    assert re.search(r"GID_c\s+C\s+0\s+1\s+1\s+0", shown(broker, "broker", "consume-stats"))
    rows = told(broker, "stats", "-t", "C")
    assert {row["group"] for row in rows} >= {"GID_c", "GID_d"}
    assert [row["in24h"] for row in rows] == [1] * len(rows)  # not what the broker has counted by now
    assert "in 24 h" in shown(broker, "statsAll") and "out counted" in shown(broker, "statsAll")
    assert told(broker, "stats", "-t", "C", "--active") == rows
    shown(broker, "group", "delete", "GID_c", "--clean-offset", "--yes")
    assert "GID_c" not in told(broker, "group", "list")


def test_brokers_and_name_servers(broker):
    (row,) = told(broker, "cluster", "list")
    assert (row["broker"], row["address"], row["version"]) == ("broker-0", broker.address, "V5_3_3")
    assert broker.address in shown(broker, "clusterList")
    assert told(broker, "broker", "status", "-b", broker.address)[broker.address]["brokerActive"] == "true"
    assert "bootTimestamp" in shown(broker, "broker", "status")
    shown(broker, "broker", "set", "-b", "broker-0", "-k", "fileReservedTime", "-v", "9")
    assert told(broker, "broker", "config", "-k", "fileReservedTime") == {
        "broker-0": {"fileReservedTime": "9"}
    }
    shown(broker, "topic", "create", "Permitted")
    for permission in (4, 6):
        shown(broker, "broker", "set", "-b", "broker-0", "-k", "brokerPermission", "-v", str(permission))
        assert told(broker, "topic", "route", "Permitted")["queueDatas"][0]["perm"] == permission
    for command in ("delete-expired-log", "clean-queues", "clean-topics"):
        assert "broker-0" in shown(broker, "broker", command, "--yes")
    assert "are no longer sent to" in shown(broker, "broker", "wipe-write", "-b", "broker-0")
    assert told(broker, "broker", "add-write", "-b", "broker-0")["topics"][broker.namesrv] > 0
    assert told(broker, "producer", "list") == []
    assert broker.namesrv in told(broker, "namesrv", "config")
    assert "enableTopicList" in shown(broker, "namesrv", "config")
    shown(broker, "namesrv", "set", "-k", "orderMessageEnable", "-v", "true")
    shown(broker, "kv", "put", "-s", "n", "-k", "a", "-v", "b")
    assert told(broker, "kv", "list", "-s", "n") == {"a": "b"}
    assert shown(broker, "kv", "get", "-s", "n", "-k", "a").strip() == "b"
    shown(broker, "kv", "delete", "-s", "n", "-k", "a", "--yes")


# --- what goes wrong


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["topic", "status", "Nowhere"], 1, "unknown topic 'Nowhere'"),
        (
            ["topic", "status", "broker-00"],
            1,
            "unknown topic 'broker-00'\n",
        ),  # the broker's own is no suggestion
        (["message", "by-unique-key", "M", "-i", "F" * 32], 1, "no message of M has the id FFF"),
        (["topic", "delete", "Nowhere"], 1, "unknown topic 'Nowhere'"),
        (["topic", "delete", "TBW102"], 2, "Delete topic TBW102 with all its messages? Nothing was done"),
        (["kv", "delete", "-s", "n", "-k", "k", "--json"], 2, "--json asks nothing: add --yes to confirm"),
        (["topic", "list", "-c", "DefaultClust"], 1, "did you mean 'DefaultCluster'?"),
        (["topic", "create", "a/b"], 1, "contains '/'"),
        (["topic", "create", "T", "-a", "x"], 2, "+name=value or -name"),
        (["topic", "create"], 2, "Missing argument 'TOPIC'"),
        (["topic", "create", "A", "-t", "B"], 2, "given twice"),
        (["topic", "create", "A", "-b", "b", "-c", "c"], 2, "Use either --broker or --cluster"),
        (["group", "progress", "GID_none"], 1, "unknown group"),
        (["group", "reset-offset", "GID", "-t", "T"], 2, "Use either --time, or --offset"),
        (["group", "reset-offset", "GID", "-t", "T", "-o", "1"], 2, "--offset requires --queue"),
        (["group", "reset-offset", "GID", "-t", "T", "-s", "someday"], 2, "neither milliseconds nor a time"),
        (["message", "view", "nonsense"], 1, "not a message id"),
        (["message", "send", "T", "-p", ""], 1, "--allow-empty-body"),
        (["message", "send", "Nowhere", "-p", "x"], 1, "unknown topic"),
        (["broker", "set", "-k", "a", "-v", "b"], 2, "Name a broker"),
        (["broker", "set", "-b", "broker-0", "-k", "fileReservdTime", "-v", "1"], 1, "'fileReservedTime'"),
        (["broker", "config", "-k", "nothing"], 1, "has no setting 'nothing'"),
        (["broker", "status", "-b", "broker-1"], 1, "did you mean 'broker-0'?"),
        (["broker", "status", "-b", "127.0.0.1:1"], 1, "cannot connect"),
        (["cluster", "list", "-n", "127.0.0.1:1"], 1, "no name server answers: 127.0.0.1:1: cannot connect"),
        (["cluster", "list", "-n", "nonsense"], 2, "host:port is needed"),
        (["cluster", "list", "-n", ";"], 2, "host:port"),
        (["clusterLost"], 2, "Did you mean 'clusterList'?"),
    ],
)
def test_one_line_says_what_is_wrong(broker, args, status, words):
    result = invoke(broker, *args)
    assert (result.exit_code, words in result.output) == (status, True), result.output
    assert result.exception is None or isinstance(result.exception, SystemExit)


# --- names


def test_every_name_of_mqadmin_leads_to_a_command():
    context = click.Context(admin)
    for name, path in MQADMIN_NAMES.items():
        command = admin.get_command(context, name)
        assert command is admin.get_command(context, name.upper())
        assert command is not None and command.name == path.split()[-1]
    assert not set(MQADMIN_NAMES) & set(admin.list_commands(context))


def test_options_of_the_cluster_may_stand_first(broker):
    """As with kubectl and its like; the error was that the group has no such option."""
    shown(broker, "topic", "create", "T")
    at = broker.namesrv
    for words in (
        ["-n", at, "topic", "list", "--json"],
        ["--json", f"--namesrv={at}", "topic", "list"],
        ["topic", f"-n{at}", "--timeout", "3", "list", "--json"],
        ["-n", at, "topicList", "--json"],
    ):
        result = CliRunner().invoke(cli, ["admin", *words])
        assert result.exit_code == 0 and "T" in json.loads(result.stdout), result.output
    for words in (["-n", at, "--help"], ["-n", at, "topic", "--help"]):
        result = CliRunner().invoke(cli, ["admin", *words])
        assert result.exit_code == 0 and "Usage: " in result.stdout
    result = CliRunner().invoke(cli, ["admin", "-n", at, "topci"])
    assert result.exit_code == 2 and "'topic'" in result.stderr


def test_every_command_has_help():
    for name in COMMANDS:
        result = CliRunner().invoke(cli, ["admin", name, "--help"])
        assert result.exit_code == 0 and "Usage: " in result.output


def test_names_are_completed(broker):
    shown(broker, "topic", "create", "Completed")
    context = click.Context(admin)
    command = admin.get_command(context, "topicStatus")
    assert command is not None
    (topic, *_) = [parameter for parameter in command.params if parameter.name == "topic"]
    context.params["namesrv"] = broker.namesrv
    assert [item.value for item in topic.shell_complete(context, "Comp")] == ["Completed"]
    assert not [item for item in topic.shell_complete(context, "") if is_system_topic(item.value)]
    assert [item.value for item in topic.shell_complete(context, "SELF_TEST")] == ["SELF_TEST_TOPIC"]
    context.params["namesrv"] = "127.0.0.1:1"
    assert topic.shell_complete(context, "Comp") == []


def test_times_to_go_on_at():
    assert (reset_time("latest"), reset_time("-1"), reset_time("earliest")) == (-1, -1, 0)
    assert reset_time("1700000000000") == 1_700_000_000_000
    assert reset_time("2024-05-01#12:30:00:500") == reset_time("2024-05-01T12:30:00.500")
    assert reset_time("now") > 1_700_000_000_000


def test_attributes():
    assert parse_attributes("") == {}
    assert parse_attributes("+a=b, -c") == {"+a": "b", "-c": ""}


def test_pop_mode(broker):
    shown(broker, "topic", "create", "Popped", "-q", "2")
    shown(broker, "group", "create", "popper")
    assert told(broker, "group", "set-mode", "popper", "-t", "Popped", "-m", "pop", "--share", "2") == {
        "group": "popper",
        "topic": "Popped",
        "mode": "POP",
        "popShareQueueNum": 2,
    }
    assert shown(broker, "group", "set-mode", "popper", "-t", "Popped", "-m", "PULL").strip() == (
        "popper consumes Popped in mode PULL"
    )
    assert told(broker, "group", "polling", "popper", "-t", "Popped")["waiting"] == 0
    assert "0 pops of popper wait" in shown(broker, "group", "polling", "popper", "-t", "Popped", "-q", "1")
