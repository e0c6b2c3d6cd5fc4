"""Every `mqlake` command that README.md and docs/ show is one that the command line takes, and tests type them.

A command in a block is read with its values, as the command itself reads them before it begins; one in a sentence
has placeholders, so its names and options alone are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from mqlake.cli.main import cli
from mqlake.cli.options import ExistingFile, ExistingPath
from tests.cli.every_command import leaves
from tests.documents import FENCE, ROOT

PAGES = {page.name: page for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))}
SHELL = ("", "sh", "bash")
SEPARATORS = set("|;&<>()")
PLACEHOLDER = re.compile(r"…|\.\.\.|[A-Z]+")
OF_OTHERS = {
    "--full-refresh-all": "spark-pipelines",
    "--refresh-package": "uv",
    "--ulimit": "docker",
    "--include": "tools/build_native.py",
    "--uv": "tools/build_native.py",
    "--machine": "tools/build_native.py",
    "--python": "tools/build_native.py",
    "--only": "bench",
    "--quick": "bench",
    "--java": "bench",
    "--rounds": "bench",
    "--kind": "tests.simulation",
    "--ack-type": "taskiq",
    "--max-prefetch": "taskiq",
}
"""Options that docs name and no command of mqlake has: whose they are."""


def commands_in_blocks(page: Path) -> Iterator[list[str]]:
    """The arguments of each `mqlake` in a block for a shell."""
    for language, text in FENCE.findall(page.read_text()):
        if language in SHELL:
            for line in text.replace("\\\n", " ").splitlines():
                yield from of_mqlake(line)


def of_mqlake(line: str) -> Iterator[list[str]]:
    line = re.sub(r"(^|\s)#\s.*$", "", line)
    if "mqlake" not in line or "$(" in line:
        return
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    words: list[str] = []
    for word in [*lexer, ";"]:
        if not set(word) <= SEPARATORS:
            words.append(word)
            continue
        while words and re.match(r"^[A-Z_]+=", words[0]):
            words.pop(0)
        if words[:2] == ["docker", "run"]:
            words = words[words.index("mqlake") :] if "mqlake" in words else []
        if words and words[0].endswith("mqlake"):
            yield words[1:]
        words = []


def spans(page: Path) -> Iterator[str]:
    """`What stands so` in its sentences and tables."""
    for paragraph in FENCE.sub("", page.read_text()).split("\n\n"):
        yield from re.findall(r"`([^`]+)`", paragraph)


def command_of(arguments: list[str]) -> tuple[click.Context, list[str]]:
    """The context of the command itself, and what is left for it."""
    context = click.Context(cli, info_name="mqlake")
    while isinstance(context.command, click.Group) and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        if PLACEHOLDER.fullmatch(name):
            break
        found = context.command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"{context.command_path} has no {name!r}")
        context = click.Context(found, parent=context, info_name=name)
    return context, arguments


def check_names(arguments: list[str]) -> None:
    """UsageError unless its commands and options are there."""
    context, rest = command_of(arguments)
    context.command.make_parser(context).parse_args(rest)


def check(arguments: list[str]) -> None:
    """UsageError unless the command takes its values, too."""
    if any(PLACEHOLDER.fullmatch(each) for each in arguments):
        check_names(arguments)
    else:
        context, rest = command_of(arguments)
        context.command.make_context(context.info_name, rest, parent=context.parent)


@pytest.fixture
def any_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that docs name need not be there."""
    for kind in (click.Path, click.File, ExistingPath, ExistingFile):
        monkeypatch.setattr(kind, "convert", lambda _, value, *__: value)


@pytest.mark.usefixtures("any_file")
@pytest.mark.parametrize("name", PAGES)
def test_commands_in_blocks_are_taken(name: str) -> None:
    for arguments in commands_in_blocks(PAGES[name]):
        try:
            check(arguments)
        except click.UsageError as error:
            pytest.fail(f"{name}: mqlake {shlex.join(arguments)}: {error.format_message()}")


@pytest.mark.parametrize("name", PAGES)
def test_commands_and_options_in_sentences_are_there(name: str) -> None:
    groups = [command_of(list(path[:-1]))[0].command for path in leaves(cli)]
    parameters = [each for command in (*leaves(cli).values(), *groups) for each in command.params]
    options = {"--help"}.union(*(each.opts + each.secondary_opts for each in parameters))
    for span in spans(PAGES[name]):
        if span.startswith("mqlake "):
            check_names(shlex.split(span)[1:])
        elif found := re.match(r"--[a-z][a-z-]*", span):
            assert found[0] in options | OF_OTHERS.keys(), (name, span)


@pytest.mark.usefixtures("any_file")
def test_what_is_not_there_is_noticed() -> None:
    """The check itself."""
    for wrong in (
        "mqlake store peek DIR",
        "seq 3 | mqlake produce Numbers --colour red",
        "NAMESRV_ADDR=a:1 mqlake consume Numbers -c many  # more",
    ):
        (arguments,) = of_mqlake(wrong)
        with pytest.raises(click.UsageError):
            check(arguments)
    assert list(of_mqlake("docker build -t mqlake . && rm -r mqlake")) == []
