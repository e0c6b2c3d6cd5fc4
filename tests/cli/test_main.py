"""The frame: help, version, completion, errors on one line, and a start that imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mqlake import __version__
from mqlake.cli.lazy_group import LazyGroup
from mqlake.cli.main import cli
from tests.waiting import PATIENCE_S

MQLAKE = str(Path(sys.executable).with_name("mqlake"))


def run(*args: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([MQLAKE, *args], capture_output=True, text=True, timeout=PATIENCE_S, **kwargs)  # type: ignore[call-overload,no-any-return]


def every_command(
    group: click.Group, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], click.Command]]:
    found: list[tuple[tuple[str, ...], click.Command]] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += every_command(command, (*path, name))
    return found


def test_version() -> None:
    result = run("--version")
    assert (result.returncode, result.stdout, result.stderr) == (0, f"mqlake {__version__}\n", "")


def test_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mqlake", "--version"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    assert result.stdout == f"mqlake {__version__}\n"


def test_every_command_has_help() -> None:
    names = [path for path, _ in every_command(cli)]
    assert {
        ("store", name)
        for name in ["info", "dump", "search", "verify", "append", "rebuild", "repair", "bench"]
    } <= set(names)
    for path, command in every_command(cli):
        result = CliRunner().invoke(cli, [*path, "--help"])
        assert result.exit_code == 0 and result.output.startswith(f"Usage: cli {' '.join(path)}")
        assert command.help, path
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, (path, parameter.opts)


def test_the_table_says_what_the_commands_say() -> None:
    """The short help of a lazy command stands in a table, so that a list of commands imports none of them."""
    for group in (cli, *(command for _, command in every_command(cli))):
        for name, (_, text) in group.lazy.items() if isinstance(group, LazyGroup) else ():
            command = group.get_command(click.Context(group), name)
            assert command is not None and command.name == name and text
            if group.name == "store":
                assert (command.help or "").startswith(text.rstrip("."))


@pytest.mark.parametrize("args", [[], ["--help"], ["store", "--help"]])
def test_help_imports_nothing_heavy(args: list[str]) -> None:
    code = (
        "import sys\nfrom mqlake.cli.main import cli\n"
        f"cli({args!r}, standalone_mode=False)\n"
        "heavy = {'numpy', 'numba', 'pyspark', 'rich', 'orjson', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    if not args:
        code = code.replace("cli([], standalone_mode=False)", "")
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_and_how_to_install_it(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert result.output.startswith("# install it with: ") and "_MQLAKE_COMPLETE" in result.output


def test_completion_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_MQLAKE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "mqlake store re")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert run().stdout.split() == ["plain,rebuild", "plain,repair"]


def test_an_unknown_command_names_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["store", "verfy"])
    assert result.exit_code == 2 and "verify" in result.output


def test_an_unknown_shell() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2


def test_errors_are_one_line(tmp_path: Path) -> None:
    result = run("store", "info", str(tmp_path / "a\nb"))
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_system_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("mqlake.cli.store.read.store_info", fails)
    result = CliRunner().invoke(cli, ["store", "info", str(tmp_path)])
    assert (result.exit_code, result.output) == (1, f"error: {tmp_path}: Permission denied\n")


def test_debugging_shows_the_traceback(tmp_path: Path) -> None:
    result = run("store", "info", str(tmp_path), env={"MQLAKE_DEBUG": "1"})
    assert result.returncode == 1 and "Traceback" in result.stderr and "NotAStoreError" in result.stderr
