"""What a terminal gets of what others sent, and that a pipe gets the bytes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.cli.terminal import Visible, visible
from mqlake.client import Message
from mqlake.client.blocking import Producer
from mqlake.message import MessageExtBrokerInner
from mqlake.store.message_store import open_store
from mqlake.testing import RocketMQ
from tests.cli.terminal import on_a_terminal
from tests.cli.test_serve import MQLAKE
from tests.store.small_store import SETTINGS

HOSTILE = "a\x1b]0;title\x07\x1b[2Jb\u202ec\u2066d\x9b31m\x7f\b\re"
BODY = HOSTILE.encode() + b"\x9b\xff\nsecond line"
SHOWN = r"a\u001b]0;title\u0007\u001b[2Jb\u202ec\u2066d\u009b31m\u007f\u0008\u000de"
STEERS = ("\x1b", "\x07", "\x08", "\x7f", "\x9b", "\u202e", "\u2066")
RUN = "from mqlake.cli.main import main; main()"
TOPIC = "Hostile"


@pytest.fixture(scope="module")
def namesrv() -> Iterator[str]:
    with RocketMQ() as running, Producer("hostile", running.namesrv) as producer:
        producer.send(Message(TOPIC, BODY, keys=HOSTILE.replace(" ", ""), properties={"p": HOSTILE}))
        yield running.namesrv


def shown(*arguments: str) -> str:
    text, _ = on_a_terminal(RUN, *arguments, results_too=True)
    return text.replace("\r\n", "\n")


@pytest.mark.parametrize("more", [[], ["--json"], ["--group", "g"], ["--group", "h", "--pop"]])
def test_consume_steers_no_terminal(namesrv: str, more: list[str]) -> None:
    text = shown(
        "consume", TOPIC, "-n", namesrv, "-e", *more, *([] if "--json" in more else ["-f", "%s|%k|%p\\n"])
    )
    assert not any(each in text for each in STEERS) and "\r" not in text
    assert SHOWN in text or "--json" in more
    if "--json" in more:
        assert json.loads(text.splitlines()[0])["properties"]["p"] == HOSTILE


def test_a_format_of_the_users_own_may_colour(namesrv: str) -> None:
    text = shown("consume", TOPIC, "-n", namesrv, "-e", "-f", "\\x1b[31m%k\\x1b[0m\\n")
    assert "\x1b[31m" + SHOWN + "\x1b[0m" in text


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_pipe_gets_the_bytes(namesrv: str, more: list[str]) -> None:
    command = [*MQLAKE, "consume", TOPIC, "-n", namesrv, "-e", *more]
    done = subprocess.run(command, capture_output=True, check=True)
    if more:
        assert json.loads(done.stdout)["properties"]["p"] == HOSTILE
    else:
        assert done.stdout == BODY + b"\n"


@pytest.mark.parametrize("more", [[], ["--json"], ["--raw"]])
def test_no_other_command_steers_a_terminal_with_what_is_stored(tmp_path: Path, more: list[str]) -> None:
    with open_store(tmp_path, SETTINGS) as store:
        put = MessageExtBrokerInner(TOPIC, BODY, HOSTILE, [HOSTILE.replace(" ", "")])
        put.born_host = put.store_host = ("127.0.0.1", 1)
        assert store.put_message(put).is_ok
    text = shown("store", "dump", str(tmp_path), *more)
    assert not any(each in text for each in STEERS)
    done = subprocess.run([*MQLAKE, "store", "dump", str(tmp_path), *more], capture_output=True, check=True)
    assert ("\x1b" in done.stdout.decode(errors="replace")) == ("--json" not in more)


def test_nor_does_an_error(tmp_path: Path) -> None:
    text, _ = on_a_terminal(
        "import sys; from mqlake.cli.main import main\ntry: main()\nexcept SystemExit: pass",
        "store",
        "info",
        str(tmp_path / "no\x1b[2Jsuch"),
    )
    assert "\x1b" not in text and "no\\u001b[2Jsuch" in text


@given(st.text(), st.integers(1, 7))
def test_what_is_cut_is_made_visible_all_the_same(text: str, size: int) -> None:
    """Whole characters come out whole, wherever a piece ends."""
    text = text.encode(errors="replace").decode().replace("\r", "")
    data, made = text.encode(), Visible("utf-8")
    pieces = b"".join(made(data[start : start + size]) for start in range(0, len(data), size))
    assert pieces == visible(text).encode()
    assert not any(each in visible(text) for each in STEERS)


def test_what_belongs_to_text_stays() -> None:
    for text in ("plain\ttext\r\nÄ日本語 👩\u200d💻 می\u200cخواهم", ""):
        assert visible(text) == text
    assert visible("\r\r\n\U000e0041\ufeff\u2028") == "\\u000d\r\n\\udb40\\udc41\\ufeff\\u2028"
    assert visible(b"\x80\xff".decode(errors="surrogateescape")) == "\\x80\\xff"
