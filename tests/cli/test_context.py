"""`mqlake context`: as somebody would type it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from tests.cli.test_contexts import file as file


def mqlake(*arguments: str, **env: str) -> Result:
    unset = dict.fromkeys(("MQLAKE_ACCESS_KEY", "MQLAKE_SECRET_KEY", "NAMESRV_ADDR", "MQLAKE_CONTEXT"))
    return CliRunner().invoke(cli, ["context", *arguments], env={**unset, **env})


def test_make_use_show_and_delete(file: Path) -> None:
    nothing = mqlake("list")
    assert "no contexts; `mqlake context set" in nothing.stderr and nothing.stdout == ""
    first = mqlake("set", "test", "-n", "127.0.0.1:9876")
    assert first.exit_code == 0 and "test (current)" in first.stdout
    made = mqlake("set", "prod", "-n", "a:1;b:1", "--tls", MQLAKE_ACCESS_KEY="me", MQLAKE_SECRET_KEY="s3cret")
    assert made.exit_code == 0 and "s3cret" not in made.output and "s3cret" in file.read_text()
    listed = {each["name"]: each for each in json.loads(mqlake("list", "--json").stdout)}
    assert listed["test"] == {"name": "test", "current": True, "namesrv": "127.0.0.1:9876"}
    assert listed["prod"]["secretKey"] == "******" and listed["prod"]["tls"] is True
    assert mqlake("use", "prod").exit_code == 0
    assert "*  prod" in mqlake("list").stdout and "a:1;b:1" in mqlake("show").stdout
    assert mqlake("set", "prod", "--no-tls", "--tls-ca", "ca.pem").exit_code == 0
    assert json.loads(mqlake("show", "prod", "--json").stdout)["namesrv"] == "a:1;b:1", (
        "what is not given stays"
    )
    assert mqlake("delete", "prod", "--yes").exit_code == 0
    assert mqlake("show").exit_code == 1 and "prod" not in file.read_text()
    assert mqlake("use", "-").stdout == "no current context\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("set", "x"), "-n HOST:PORT"),
        (("set", "a/b", "-n", "a:1"), "context 'a/b': a name has letters"),
        (("set", "", "-n", "a:1"), "context ''"),
        (("set", "two words", "-n", "a:1"), "context 'two words'"),
        (("set", "..", "-n", "a:1"), "context '..'"),
        (("set", "-n", "a:1", "--", "-"), "context '-'"),  # which `use -` takes for none
        (("set", "x", "-n", "a:1", "--access-key", "me"), "belong together"),
        (("set", "x", "-n", "a:1;b"), "'b' is not an address of a name server"),
    ],
)
def test_what_cannot_be_is_said_and_changes_nothing(
    file: Path, arguments: tuple[str, ...], words: str
) -> None:
    result = mqlake(*arguments)
    assert result.exit_code == 2 and words in result.stderr and not file.exists()


@pytest.mark.parametrize("command", ["use", "show", "delete"])
def test_a_context_that_is_not_there(file: Path, command: str) -> None:
    result = mqlake(command, "nobody")
    assert result.exit_code == 1 and not file.exists()
    assert result.stderr == "Error: unknown context 'nobody'; `mqlake context list` lists them\n"
