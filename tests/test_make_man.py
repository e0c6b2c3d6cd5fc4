"""tools/make_man.py: every command and option is in the man page, and shells take the completion."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import click
import pytest
from tools.make_man import SHELLS, TARGET, files

from mqlake.cli.main import cli
from tests.cli.every_command import leaves

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def made() -> dict[str, str]:
    return files()


def test_the_page_has_every_command_with_its_options(made: dict[str, str]) -> None:
    page = made["mqlake.1"].replace("\\-", "-").replace("\\e", "\\")
    for path, command in leaves(cli).items():
        section = re.search(rf"^\.SS mqlake {' '.join(path)}( .*)?$", page, re.MULTILINE)
        assert section is not None, path
        rest = page[section.end() :].partition("\n.SS ")[0]
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                assert max(option.opts, key=len) in rest, (path, option.opts)
    assert not re.search(r"^'", page, re.MULTILINE), "troff takes it for a request"


def test_shells_take_the_completion(made: dict[str, str], tmp_path: Path) -> None:
    for shell, name in SHELLS.items():
        (tmp_path / name).write_text(made[name])
        if found := shutil.which(shell):
            subprocess.run([found, "-n", tmp_path / name], check=True)
        assert "_MQLAKE_COMPLETE" in made[name]


def test_the_wheel_has_them() -> None:
    """`make wheel` makes them again; here they only have to be there."""
    shared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]
    assert {ROOT / name for name in shared["shared-data"]} == {
        path for path in TARGET.iterdir() if path.is_file()
    }
