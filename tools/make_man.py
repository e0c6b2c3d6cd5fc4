"""Writes packaging/: the man page of mqlake, and completion for bash, zsh and fish, all made of the commands; --check
only says whether they are up to date. The wheel installs them below share/."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from mqlake.cli.main import cli

TARGET = Path(__file__).resolve().parent.parent / "packaging"
SHELLS = {"bash": "mqlake.bash", "zsh": "_mqlake", "fish": "mqlake.fish"}


def _roff(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.MULTILINE)


def _paragraphs(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = [line.strip() for line in block.splitlines()]
        if lines and lines[0] == "\b":
            yield ".PP\n.nf\n" + _roff("\n".join(lines[1:])) + "\n.fi\n"
        else:
            yield ".PP\n" + _roff(" ".join(lines)) + "\n"


def _commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None or command.hidden:
            continue
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))


def _command(path: tuple[str, ...], command: click.Command) -> str:
    given = (each for each in command.params if isinstance(each, click.Argument))
    arguments = " ".join(each.make_metavar(click.Context(command)) for each in given)
    parts = [f".SS {_roff(' '.join(('mqlake', *path)))} {_roff(arguments)}".rstrip() + "\n"]
    parts += _paragraphs(command.help or "")
    for option in command.params:
        record = option.get_help_record(click.Context(command)) if isinstance(option, click.Option) else None
        if record is not None:
            parts.append(f".TP\n.B {_roff(record[0])}\n{_roff(record[1])}\n")
    return "".join(parts)


def man_page() -> str:
    parts = [".TH MQLAKE 1 \"\" \"mqlake\" \"User commands\"\n", ".SH NAME\n",
             "mqlake \\- a message store and broker compatible with Apache RocketMQ on disk and on the wire\n",
             ".SH SYNOPSIS\n.B mqlake\nCOMMAND [OPTIONS] ...\n", ".SH DESCRIPTION\n"]  # fmt: skip
    parts += _paragraphs(cli.help or "")
    parts.append(".SH COMMANDS\n")
    parts += [_command(path, command) for path, command in _commands(cli, ())]
    return "".join(parts)


def files() -> dict[str, str]:
    """File name → content."""
    made = {"mqlake.1": man_page()}
    for shell, name in SHELLS.items():
        kind = get_completion_class(shell)
        assert kind is not None
        made[name] = kind(cli, {}, "mqlake", "_MQLAKE_COMPLETE").source()
    return made


def main() -> int:
    wrong = [name for name, text in files().items() if _content(name) != text]
    if "--check" in sys.argv[1:]:
        again = "; run: .venv/bin/python tools/make_man.py" if wrong else ""
        print(f"packaging: {', '.join(wrong) or 'nothing'} to renew{again}")
        return int(bool(wrong))
    TARGET.mkdir(exist_ok=True)
    for name, text in files().items():
        (TARGET / name).write_text(text, encoding="utf-8")
    return 0


def _content(name: str) -> str | None:
    path = TARGET / name
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
