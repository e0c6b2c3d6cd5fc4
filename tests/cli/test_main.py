"""The frame: help, version, completion, errors on one line, and a start that imports nothing heavy."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from packaging.requirements import Requirement

from mqlake import __version__
from mqlake.cli.lazy_group import LazyGroup
from mqlake.cli.main import cli
from tests.cli.every_command import leaves
from tests.waiting import PATIENCE_S, until

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
    assert run().stdout.split() == ["plain,rebuild", "plain,repair", "plain,restore"]


def test_an_unknown_command_names_the_nearest() -> None:
    result = CliRunner().invoke(cli, ["store", "verfy"])
    assert result.exit_code == 2 and "verify" in result.output


def test_an_unknown_shell() -> None:
    assert CliRunner().invoke(cli, ["completion", "tcsh"]).exit_code == 2


def test_errors_are_one_line(tmp_path: Path) -> None:
    result = run("store", "info", str(tmp_path / "a\nb"))
    assert result.returncode == 1 and result.stdout == ""
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_system_errors_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("mqlake.cli.store.read.store_info", fails)
    result = CliRunner().invoke(cli, ["store", "info", str(tmp_path)])
    assert (result.exit_code, result.output) == (1, f"Error: {tmp_path}: Permission denied\n")


def test_debugging_shows_the_traceback(tmp_path: Path) -> None:
    result = run("store", "info", str(tmp_path), env={"MQLAKE_DEBUG": "1"})
    assert result.returncode == 1 and "Traceback" in result.stderr and "NotAStoreError" in result.stderr


def test_debugging_shows_the_traceback_of_system_errors(tmp_path: Path) -> None:
    result = run("lake", "run", str(tmp_path / "lake.toml"), env={"MQLAKE_DEBUG": "1"})
    assert result.returncode == 1 and "Traceback" in result.stderr and "FileNotFoundError" in result.stderr


def test_ctrl_c_while_the_command_line_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(type(cli), "parse_args", interrupted)
    result = CliRunner().invoke(cli, ["store"])
    assert (result.exit_code, result.output) == (128 + signal.SIGINT, "")


# --- what all commands have in common

SERVERS = {("serve",), ("broker",), ("namesrv",), ("metaq", "serve")}
DESTRUCTIVE = {
    ("admin", "topic", "delete"),
    ("admin", "group", "delete"),
    ("admin", "group", "reset-offset"),
    ("admin", "group", "skip"),
    ("admin", "group", "clone-offset"),
    ("admin", "broker", "delete-expired-log"),
    ("admin", "broker", "clean-queues"),
    ("admin", "broker", "clean-topics"),
    ("admin", "failover", "elect"),
    ("admin", "kv", "delete"),
    ("admin", "acl", "delete"),
    ("admin", "user", "delete"),
    ("context", "delete"),
    ("lake", "orphans"),
    ("lake", "rewind"),
    ("admin", "broker", "promote"),
    ("store", "repair"),
    ("store", "truncate"),
    ("store", "dropped"),
    ("metaq", "store", "repair"),
    ("metaq", "transactions", "end"),
}
"""What cannot be taken back. `rebuild` is none of them: what it replaces can be made from the log again."""


def options(command: click.Command) -> set[str]:
    return {each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)}


def test_every_command_has_json() -> None:
    missing = [path for path, command in leaves(cli).items() if "--json" not in options(command)]
    assert missing == []


def test_no_command_has_an_option_twice() -> None:
    for path, command in leaves(cli).items():
        names = [
            each for parameter in command.params for each in (*parameter.opts, *parameter.secondary_opts)
        ]
        assert len(names) == len(set(names)), path


def test_what_destroys_asks_or_takes_yes() -> None:
    taking = {path for path, command in leaves(cli).items() if "--yes" in options(command)}
    assert taking == DESTRUCTIVE


def test_n_is_the_name_server() -> None:
    for path, command in leaves(cli).items():
        for parameter in command.params:
            if "-n" in parameter.opts:
                assert "--namesrv" in parameter.opts, path


@pytest.mark.parametrize(
    "path", [p for p, c in leaves(cli).items() if "--set" in options(c) and p not in SERVERS]
)
def test_an_unknown_setting_is_an_error(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli, [*path, "--set", "mappedFileSizeComitLog=1m"])
    assert result.exit_code == 2
    assert "'mappedFileSizeComitLog'; did you mean 'mappedFileSizeCommitLog'?" in result.stderr


# --- Ctrl-C


@pytest.mark.parametrize(
    ("module", "args"),
    [
        ("click", ["--help"]),
        ("numpy", ["store", "info", "."]),
        ("uvloop", ["produce", "T", "-m", "x"]),
    ],
)
def test_ctrl_c_while_modules_are_imported(module: str, args: list[str], tmp_path: Path) -> None:
    """A module that takes its time stands for the real one."""
    (tmp_path / f"{module}.py").write_text(
        f"import signal\nopen({str(tmp_path / 'here')!r}, 'w').close()\nsignal.pause()\n"
    )
    process = subprocess.Popen(
        [MQLAKE, *args],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until((tmp_path / "here").exists, "the import has begun")
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, out) == (-signal.SIGINT, "")
    summary = "0 messages, 0 B sent to T in " if module == "uvloop" else ""
    assert error.startswith(summary) and error.count("\n") == bool(summary)


# --- an installation without extras


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of an installation with nothing but what mqlake itself needs."""
    place = tmp_path_factory.mktemp("core")
    seen: set[str] = set()

    def add(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        distribution = importlib.metadata.distribution(name)
        for text in distribution.requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                add(requirement.name.lower())
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if name != "mqlake" and not (place / top).exists():
                (place / top).symlink_to(str(distribution.locate_file(top)))

    add("mqlake")
    assert "numpy" in seen and not seen & {"pyspark", "kazoo", "pyarrow"}
    root = Path(__file__).parents[2]
    paths = [str(place), str(root / "src"), str(root / "examples")]
    code = f"import sys; sys.path += {paths}; from mqlake.__main__ import main; main()"
    return [sys.executable, "-I", "-S", "-c", code]


@pytest.mark.parametrize(
    ("args", "extra"),
    [
        ("spark verify DIR", "spark"),
        ("spark rebuild DIR", "spark"),
        ("spark diff DIR DIR", "spark"),
        ("spark search DIR --key k", "spark"),
        ("spark stats DIR", "spark"),
        ("spark export DIR OUT", "spark"),
        ("spark ingest a.parquet --to-store OUT", "spark"),
        ("spark compact DIR OUT", "spark"),
        ("spark migrate DIR OUT", "spark"),
        ("spark replay DIR --to-broker 127.0.0.1:1", "spark"),
        ("spark ingest a --to-store OUT --master sc://127.0.0.1:1", "connect"),
        ("metaq migrate DIR OUT", "spark"),
        ("metaq produce T", "zk"),
        ("metaq consume T", "zk"),
        ("metaq stats", "zk"),
        ("metaq serve --store OUT --zookeeper 127.0.0.1:1", "zk"),
        ("demo OUT", "demo"),
        ("lake run DIR --topic T --warehouse OUT", "lake"),
        ("lake status DIR --topic T --warehouse OUT", "lake"),
        ("store offload DIR memory://out", "archive"),
    ],
)
def test_a_missing_extra_is_named(core: list[str], args: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    (tmp_path / "checkpoint").touch()
    words = [
        str(tmp_path / "out") if word == "OUT" else word.replace("DIR", str(tmp_path))
        for word in args.split()
    ]
    result = subprocess.run(
        [*core, *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert result.returncode == 3, result.stderr
    assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"is missing; install it with: pip install 'mqlake[{extra}]'\n")


def test_help_needs_no_extra(core: list[str]) -> None:
    code = (
        "; from click.testing import CliRunner; from tests.cli.every_command import leaves\n"
        "from mqlake.cli.main import cli\n"
        "for path in leaves(cli):\n"
        "    result = CliRunner().invoke(cli, [*path, '--help'])\n"
        "    assert result.exit_code == 0, (path, result.output, result.exception)\n"
        "print('all')\n"
    )
    here = f"; sys.path.append({str(Path(__file__).parents[2])!r})"
    result = subprocess.run(
        [*core[:-1], core[-1].partition("; from mqlake")[0] + here + code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert result.stdout == "all\n", result.stderr
