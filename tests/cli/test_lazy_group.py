"""Commands are imported when they run, and listed, completed and suggested without."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mqlake.cli.lazy_group import LazyGroup

NAME = "a_lazy_command"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> click.Group:
    (tmp_path / f"{NAME}.py").write_text(
        "import click\n@click.command(help='Not this line.')\ndef greet():\n    click.echo('hello')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)

    @click.group(cls=LazyGroup, lazy={"greet": (f"{NAME}:greet", "say hello")})
    def main() -> None:
        pass

    @main.command(help="Add two numbers.")
    def add() -> None:
        click.echo("3")

    return main


def test_only_the_command_that_runs_is_imported(group: click.Group) -> None:
    run = CliRunner().invoke
    listing = run(group, ["--help"]).output
    assert "greet  say hello" in listing and "add    Add two numbers." in listing
    assert listing.index("greet") < listing.index("add ")
    assert run(group, ["add"]).output == "3\n"
    assert NAME not in sys.modules
    assert run(group, ["greet"]).output == "hello\n"
    assert NAME in sys.modules


def test_completion(group: click.Group) -> None:
    context = click.Context(group)

    def completed(text: str) -> list[tuple[object, object]]:
        return [(item.value, item.help) for item in group.shell_complete(context, text)]

    assert completed("") == [("greet", "say hello"), ("add", "Add two numbers.")]
    assert completed("g") == [("greet", "say hello")]
    assert completed("x") == []
    assert "--help" in [value for value, _ in completed("--h")]
    assert NAME not in sys.modules


def test_a_mistyped_command_is_answered_with_the_nearest(group: click.Group) -> None:
    result = CliRunner().invoke(group, ["gret"])
    assert result.exit_code == 2
    assert "Did you mean 'greet'?" in result.output
    assert "mean" not in CliRunner().invoke(group, ["zzzzz"]).output
