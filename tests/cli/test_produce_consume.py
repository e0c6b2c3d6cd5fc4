"""`mqlake produce` and `mqlake consume` against `mqlake serve`."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from mqlake.cli import clients
from mqlake.cli.consume import Start, formatter, parse_start
from mqlake.cli.main import cli
from mqlake.client.records import MessageClientExt
from mqlake.errors import ConfigError
from mqlake.remoting.loop import run
from tests.client.consume.test_undecodable import poisoned
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S

# as a user does, but as patient as a busy machine asks for
MQLAKE = f"""
from mqlake.cli import clients, main
clients.client_config.__defaults__ = ({PATIENCE_S},)
main.main()
"""
_numbers = itertools.count()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    settings = {"brokerName": "broker-a", "enablePropertyFilter": "true", "defaultTopicQueueNums": "1"}
    with MqlakeBroker(tmp_path_factory.mktemp("serve"), settings) as started:
        yield started


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients.client_config, "__defaults__", (PATIENCE_S,))


@pytest.fixture
def topic() -> str:
    return f"T{next(_numbers)}"


def start(broker: MqlakeBroker, *args: str, **options: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
        [
            sys.executable,
            "-c",
            MQLAKE,
            *args,
            *(["--timeout", str(PATIENCE_S)] if args[0] == "produce" else []),
        ],
        env={**os.environ, "NAMESRV_ADDR": broker.namesrv},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )


def mqlake(broker: MqlakeBroker, *args: str, stdin: bytes = b"", status: int = 0) -> tuple[bytes, str]:
    """stdout and stderr of a command, in this process: starting one costs more than most of these commands do."""
    patience = ["--timeout", str(PATIENCE_S)] if args[0] == "produce" else []
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        with os.fdopen(writing, "wb") as end:
            end.write(stdin)  # a pipe holds 64 KiB
        done = CliRunner().invoke(cli, [*args, *patience], input=pipe, env={"NAMESRV_ADDR": broker.namesrv})
    assert done.exit_code == status, done.stderr
    return done.stdout_bytes, done.stderr


def read(broker: MqlakeBroker, topic: str, count: int, *args: str) -> bytes:
    return mqlake(broker, "consume", topic, "-c", str(count), *args)[0]


def test_lines_in_and_out(broker, topic) -> None:
    _, err = mqlake(broker, "produce", topic, "-t", "tag", "-p", "x=1", stdin=b"one\n\ntwo\r\nthree")
    assert f"3 messages, 11 B sent to {topic}" in err
    assert read(broker, topic, 3) == b"one\ntwo\nthree\n"
    out, err = mqlake(broker, "consume", topic, "-e", "-f", "%t %b %q %o %g %S %s|", "--from", "1")
    assert out == f"{topic} broker-a 0 1 tag 3 two|{topic} broker-a 0 2 tag 5 three|".encode()
    assert "2 messages" in err
    assert mqlake(broker, "consume", topic, "-e", "--from", "-1")[0] == b"three\n"
    assert mqlake(broker, "consume", topic, "-e", "--from", "latest")[0] == b""
    assert (
        mqlake(broker, "consume", topic, "-e", "--from", "@0", "--tags", "other || tag", "-c", "1")[0]
        == b"one\n"
    )


@pytest.mark.parametrize(("option", "name"), [("--key", "keys"), ("--tag", "tags"), ("-p", "property 'p'")])
def test_text_that_utf_8_cannot_hold(broker, topic, option, name) -> None:
    """Without it the broker would be sent a frame that it cannot read, or another text than was given."""
    gbk = "订单".encode("gbk").decode(errors="surrogateescape")  # as arguments come from such a terminal
    text = f"p={gbk}" if option == "-p" else gbk
    _, err = mqlake(broker, "produce", topic, option, text, "-m", "x", status=1)
    assert f"{name} holds the byte 0xB6, which is no UTF-8" in err


def test_a_line_of_blanks_is_a_message(broker, topic) -> None:
    mqlake(broker, "produce", topic, stdin=b"a\n \n\n\t\n")
    assert read(broker, topic, 3) == b"a\n \n\t\n"


def test_it_ends_when_nobody_reads_what_it_prints(broker, topic) -> None:
    process = start(broker, "produce", topic, "-v", "--in-flight", "4")
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stdin.write(b"x\n" * 10_000)
    process.stdin.close()
    errors = process.stderr.read().decode()
    process.wait(PATIENCE_S)
    process.stderr.close()
    assert process.returncode != 0 and "Traceback" not in errors
    sent = int(errors.partition(" message")[0].replace(",", ""))
    assert sent <= 8


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"text":"t","properties":[1]}', "`properties` is not an object"),
        ('{"text":"t","keys":5}', "`keys` is not a string"),
        ('{"text":"t","tags":["a"]}', "`tags` is not a string"),
    ],
)
def test_a_json_line_of_wrong_types_is_named(broker, topic, line, words) -> None:
    _, err = mqlake(broker, "produce", topic, "--format", "json", stdin=line.encode(), status=1)
    assert f"line 1 is not a message: {words}" in err


def test_keys_in_the_lines(broker, topic) -> None:
    mqlake(broker, "produce", topic, "-K", ":", "--by-key", stdin=b"k1:a\nk2:b:c\nnone\n")
    assert read(broker, topic, 3, "-f", r"%k\t%s\n") == b"k1\ta\nk2\tb:c\n\tnone\n"


def test_a_message_without_a_body_deletes_its_key(broker, topic) -> None:
    """Tables of latest rows need it; nothing of mqlake's could send one."""
    _, err = mqlake(broker, "produce", topic, "-m", "", "-k", "k1", status=1)
    assert "RocketMQ's brokers refuse such" in err and "--allow-empty-body" in err
    mqlake(broker, "produce", topic, "-m", "", "-k", "k1", "--allow-empty-body")
    assert read(broker, topic, 1, "-f", r"%k\t%S\n") == b"k1\t0\n"


def test_json_goes_round(broker, topic) -> None:
    lines = [
        {"text": "ü", "tags": "t", "keys": "k", "properties": {"n": "7", "UNIQ_KEY": "old"}, "flag": 3},
        {"body": base64.b64encode(b"\x00\xff").decode()},
    ]
    text = "\n".join(json.dumps(line) for line in lines).encode()
    out, _ = mqlake(broker, "produce", topic, "--format", "json", "--batch", "10", "--json", stdin=text)
    assert json.loads(out)["sent"] == 2
    first, second = map(json.loads, read(broker, topic, 2, "--json").splitlines())
    assert first["text"] == "ü" and base64.b64decode(second["body"]) == b"\x00\xff"
    assert "body" not in first and "text" not in second
    assert (first["tags"], first["keys"], first["flag"], first["properties"]["n"]) == ("t", "k", 3, "7")
    assert first["uniqKey"] != "old" and (first["topic"], first["queueOffset"]) == (topic, 0)
    assert mqlake(broker, "consume", topic, "-e", "--sql", "n > 6")[0].decode() == "ü\n"
    _, err = mqlake(broker, "produce", topic, "--format", "json", stdin=b'{"text": 1}\n', status=1)
    assert "Error: line 1 is not a message: `text` is missing or not a string" in err


def test_bodies_in_json(broker, topic) -> None:
    """Each choice goes round, byte by byte: numbers keep their digits, what is no text is no text."""
    bodies = (b'{"a": 1.50, "n": 123456789012345678901234567890,\n "t": "\\n"}', b"plain", b"\xff{}", b"NaN")
    for body in bodies:
        mqlake(broker, "produce", topic, "--format", "file", stdin=body)

    def read_as(kind: str) -> list[bytes]:
        out, _ = mqlake(broker, "consume", topic, "-e", "--json", "--body", kind)
        assert out.count(b"\n") == len(bodies)
        return out.splitlines()

    found = [json.loads(line) for line in read_as("base64")]
    assert [base64.b64decode(line["body"]) for line in found] == list(bodies)
    found = [json.loads(line) for line in read_as("text")]
    assert [line.get("text") for line in found] == [bodies[0].decode(), "plain", None, "NaN"]
    assert base64.b64decode(found[2]["body"]) == bodies[2]
    lines = read_as("json")
    assert b'"json":' + bodies[0].replace(b"\n", b" ") in lines[0]
    assert [json.loads(line).get("text") for line in lines] == [None, "plain", None, "NaN"]
    copy = f"{topic}_copy"
    for kind in ("base64", "text", "json"):
        text = b"\n".join(read_as(kind))
        mqlake(broker, "produce", copy, "--format", "json", "--batch", "9", stdin=text)
    out, _ = mqlake(broker, "consume", copy, "-e", "--json", "--body", "base64")
    copies = [base64.b64decode(json.loads(line)["body"]) for line in out.splitlines()]
    assert copies[:8] == [*bodies, *bodies]
    assert copies[8] == b'{"a":1.5,"n":123456789012345678901234567890,"t":"\\n"}' and copies[9:] == [
        *bodies[1:]
    ]


def test_a_topic_that_the_broker_makes_is_mentioned(broker, topic) -> None:
    """A mistyped name would go unnoticed; its consumers wait elsewhere."""
    _, said = mqlake(broker, "produce", topic, "-m", "x")
    assert said.endswith(f"there was no topic {topic}: the broker has made it\n")
    _, said = mqlake(broker, "produce", topic, "-m", "x")
    assert "the broker has made it" not in said
    out, _ = mqlake(broker, "produce", f"{topic}_2", "-m", "x", "--json")
    assert json.loads(out)["topicCreated"] is True


def test_files_and_arguments(broker, topic, tmp_path) -> None:
    (tmp_path / "a").write_bytes(b"x\ny" * 3000)
    out, _ = mqlake(
        broker, "produce", topic, "--format", "file", str(tmp_path / "a"), "-v", "--compress", "zstd"
    )
    assert out.endswith(b"  broker-a/0@0\n")
    mqlake(broker, "produce", topic, "-m", "one", "-m", "two", "--in-flight", "1")
    assert read(broker, topic, 3, "-f", "%s") == b"x\ny" * 3000 + b"onetwo"
    _, err = mqlake(broker, "produce", topic, str(tmp_path / "none"), status=1)
    assert "none: No such file" in err


def test_a_file_is_shown_with_its_size(broker, topic, tmp_path) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"a line of the file\n" * 20_000)
    ours, theirs = pty.openpty()
    shown = b""
    command = "from mqlake.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", command, "produce", topic, str(lines), "--timeout", str(PATIENCE_S)],
        env={**os.environ, "NAMESRV_ADDR": broker.namesrv, "TERM": "xterm", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    with contextlib.suppress(OSError):  # the end of a terminal
        while data := os.read(ours, 1 << 16):
            shown += data
    os.close(ours)
    assert process.wait(PATIENCE_S) == 0, shown
    assert b"/371.1 KiB" in shown and b"20,000 messages" in shown


def test_a_group_goes_on_where_it_was(broker, topic) -> None:
    mqlake(broker, "produce", topic, stdin=b"".join(b"%d\n" % i for i in range(10)))
    assert read(broker, topic, 4, "--group", topic) == b"0\n1\n2\n3\n"
    out, _ = mqlake(broker, "consume", topic, "-e", "--group", topic)
    assert out == b"4\n5\n6\n7\n8\n9\n"


def test_members_pop(broker, topic) -> None:
    mqlake(broker, "produce", topic, stdin=b"".join(b"%d\n" % i for i in range(10)))
    pop = ("--group", topic, "--pop", "--invisible", "600")
    first, _ = mqlake(broker, "consume", topic, "-c", "4", *pop)
    rest, _ = mqlake(broker, "consume", topic, "-e", *pop)
    assert sorted((first + rest).split()) == sorted(b"%d" % i for i in range(10))
    assert mqlake(broker, "consume", topic, "-e", *pop)[0] == b""
    _, err = mqlake(broker, "consume", topic, "--pop", status=2)
    assert "--pop needs --group" in err


def test_a_pipe_is_sent_as_it_comes_and_ctrl_c_ends_both(broker, topic) -> None:
    mqlake(broker, "produce", topic, "-m", "first")
    consumer = start(broker, "consume", topic, "--from", "latest")
    producer = start(broker, "produce", topic)
    assert consumer.stdout is not None and producer.stdin is not None
    try:
        deadline = time.monotonic() + PATIENCE_S
        os.set_blocking(consumer.stdout.fileno(), False)
        while not (line := consumer.stdout.readline()):
            assert time.monotonic() < deadline
            producer.stdin.write(b"line\n")
            producer.stdin.flush()
            time.sleep(0.05)
        assert line == b"line\n"
        for process in (producer, consumer):
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == 0
    finally:
        for process in (producer, consumer):
            process.kill()
            process.communicate()


def test_a_second_ctrl_c_ends_the_program_by_the_signal() -> None:
    """Without it a KeyboardInterrupt in the middle of a callback becomes an error of the event loop, or is lost."""
    code = (
        "import asyncio\n"
        "from mqlake.cli.clients import stop_on_signals\n"
        "from mqlake.remoting.loop import run\n"
        "async def main():\n"
        "    stop = stop_on_signals()\n"
        "    print('ready', flush=True)\n"
        "    await stop.wait()\n"
        "    print('stopping', flush=True)\n"
        "    while True: await asyncio.sleep(0)\n"
        "run(main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    for line in (b"ready\n", b"stopping\n"):
        assert process.stdout.readline() == line
        process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, err) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    ("args", "status", "words"),
    [
        (["produce", "T", "-n", "127.0.0.1:1", "-m", "x"], 1, "no name server answers: 127.0.0.1:1"),
        (["consume", "T", "-n", "127.0.0.1:1"], 1, "start one with `mqlake serve`"),
        (["consume", "no_such_topic"], 1, "topic no_such_topic: no broker has it"),
        (["consume", "T", "-f", "%z"], 2, "%z"),
        (["consume", "T", "--from", "soon"], 2, "neither earliest, latest"),
        (["consume", "T", "--tags", "a", "--sql", "b"], 2, "either --tags or --sql"),
        (["consume", "a b"], 1, "contains ' '"),
        (["consume", "T", "--body", "text"], 2, "--body is for --json"),
        (["produce", "T", "no such file"], 1, "Error: no such file: No such file"),
        (["produce", "T", "-m", "{}", "--format", "json"], 2, "-m gives a body as it is"),
        (["produce", "T", "-p", "x"], 2, "not NAME=VALUE"),
        (["produce", "T", "-p", "KEYS=x"], 2, "reserved by RocketMQ"),
        (["produce", "SCHEDULE_TOPIC_XXXX", "-m", "x"], 1, "the broker's own"),
        (["produce", "T", "--delay", "1", "--batch", "2"], 2, "a batch cannot be delayed"),
    ],
)
def test_what_cannot_be_is_said(broker, args: list[str], status: int, words: str) -> None:
    result = CliRunner().invoke(cli, args, env={"NAMESRV_ADDR": broker.namesrv})
    assert result.exit_code == status and words in result.output and "0 messages" not in result.output


def test_a_topic_that_is_nearly_there_is_named(broker) -> None:
    mqlake(broker, "produce", "Invoices", "-m", "x")
    result = CliRunner().invoke(cli, ["consume", "Invoice"], env={"NAMESRV_ADDR": broker.namesrv})
    assert result.exit_code == 1 and "did you mean 'Invoices'? `mqlake admin topic list`" in result.output


def test_a_condition_that_cannot_be_parsed(broker, topic) -> None:
    mqlake(broker, "produce", topic, "-m", "x")
    for args, words in [
        (("--sql", "n >"), "code 23"),
        (("--queue", "9"), "--queue 9 is not one of broker-a:0"),
    ]:
        result = CliRunner().invoke(cli, ["consume", topic, *args], env={"NAMESRV_ADDR": broker.namesrv})
        assert result.exit_code in (1, 2) and words in result.output


def test_formats() -> None:
    message = MessageClientExt("T", b"\xff", "g", ["a", "b"], queue_offset=5, properties={"x": "1"})
    message.broker_name = "b"
    assert (
        formatter(r"%t/%q@%o %k %g %p%%\x41\\%s\0")(message) == b"T/0@5 a b g x=1,TAGS=g,KEYS=a b%A\\\xff\0"
    )
    for bad in ("%", "%y", "\\q", "\\"):
        with pytest.raises(ConfigError):
            formatter(bad)


def test_starts() -> None:
    def parsed(text: str) -> Start:
        return parse_start(None, None, text)  # type: ignore[arg-type]

    assert [parsed(text) for text in ("earliest", "12", "-3", "@1700000000000", "1970-01-01T00:00:01Z")] == [
        Start("earliest"),
        Start("offset", 12),
        Start("from_end", 3),
        Start("time", 1700000000000),
        Start("time", 1000),
    ]


def test_what_cannot_be_decoded_is_named_and_hides_nothing_else(broker, topic) -> None:
    run(poisoned(broker, topic))
    out, err = mqlake(broker, "consume", topic, "-e", "--group", f"G{topic}", status=1)
    assert out == b"0\n1\n"
    assert f"message ID2 of topic {topic}, broker broker-a, queue 0, queue offset 2 cannot be decoded" in err
    assert "--on-undecodable skip continues" in err and "Traceback" not in err
    # the group continues at the message, not before and not after it
    assert (
        mqlake(broker, "consume", topic, "-e", "-g", f"G{topic}", "--on-undecodable", "raw", "-f", "%o|")[0][
            :1
        ]
        == b"2"
    )
    out, err = mqlake(broker, "consume", topic, "-e", "--on-undecodable", "skip")
    assert out.startswith(b"0\n1\n3\n4\n") and out.endswith(b"7\n8\n")
    assert "skipped: message ID2 of" in err and "2 skipped" in err
    out, _ = mqlake(broker, "consume", topic, "-e", "--on-undecodable", "raw", "--json")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line["queueOffset"] for line in lines if "undecodable" in line] == [2, 5]
    assert lines[2]["text"] == "not compressed"


def test_until_an_offset_or_a_time(broker, topic) -> None:
    mqlake(broker, "produce", topic, "-m", "a", "-m", "b", "-m", "c")
    assert mqlake(broker, "consume", topic, "--until", "2")[0] == b"a\nb\n"
    assert mqlake(broker, "consume", topic, "--until", "9", "-e")[0] == b"a\nb\nc\n"
    lines = [json.loads(line) for line in mqlake(broker, "consume", topic, "-e", "--json")[0].splitlines()]
    last = lines[-1]["storeTimestamp"]
    before = [line["queueOffset"] for line in lines if line["storeTimestamp"] < last]
    out, _ = mqlake(broker, "consume", topic, "--until", f"@{last}", "-f", "%o\\n")
    assert [int(line) for line in out.split()] == before
    soon = str(time.time_ns() // 1_000_000 + 300)
    assert mqlake(broker, "consume", topic, "--until", f"@{soon}")[0] == b"a\nb\nc\n"
    assert (
        mqlake(broker, "consume", topic, "--until", "-1", status=2)[1].count("neither an offset nor a time")
        == 1
    )
    assert "excludes --group" in mqlake(broker, "consume", topic, "--until", "1", "-g", "g", status=2)[1]
    span = ("--from", "2024-05-02", "--until", "2024-05-01")
    assert "--until is before --from" in mqlake(broker, "consume", topic, *span, status=2)[1]


def test_templates_and_a_rate(broker, topic) -> None:
    fields = ("-k", "key-{n}", "-t", "t{n}", "-p", "id={uuid}", "-p", "plain={x}")
    _, said = mqlake(
        broker,
        "produce",
        topic,
        "--template",
        "-m",
        "n {n}",
        "-m",
        "{ms}",
        "--count",
        "5",
        "--rate",
        "1000",
        *fields,
    )
    assert "{x} is sent as it is" in said and "{uuid} is" not in said
    lines = [json.loads(line) for line in mqlake(broker, "consume", topic, "-e", "--json")[0].splitlines()]
    bodies = [line["text"] for line in lines]
    assert bodies[::2] == ["n 0", "n 2", "n 4"] and all(body.isdigit() for body in bodies[1::2])
    assert [(line["keys"], line["tags"]) for line in lines] == [(f"key-{n}", f"t{n}") for n in range(5)]
    assert len({line["properties"]["id"] for line in lines}) == 5
    assert {line["properties"]["plain"] for line in lines} == {"{x}"}
    mqlake(broker, "produce", topic, "-m", "{n}")
    assert mqlake(broker, "consume", topic, "-e", "--from", "-1")[0] == b"{n}\n", "only with --template"
    assert "--count needs -m" in mqlake(broker, "produce", topic, "--count", "2", status=2)[1]


def test_shells_complete_topics_and_groups(broker, topic, monkeypatch) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", broker.namesrv)
    monkeypatch.setattr("mqlake.cli.admin.shared.COMPLETION_TIMEOUT_S", PATIENCE_S)
    mqlake(broker, "produce", topic, "-m", "x")
    mqlake(broker, "consume", topic, "-c", "1", "-g", f"group-of-{topic}")
    shell = BashComplete(cli, {}, "mqlake", "_MQLAKE_COMPLETE")
    for typed, begun, expected in (
        (["consume"], topic, topic),
        (["produce"], topic, topic),
        (["consume", topic, "--group"], "group-of-", f"group-of-{topic}"),
    ):
        assert expected in [each.value for each in shell.get_completions(typed, begun)], typed
