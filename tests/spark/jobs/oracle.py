"""What `mqlake store dump --json` says of stores: the jobs' results are compared with plain Python over it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from mqlake.cli.main import cli

Row = dict[str, Any]


def dumped(root: Path) -> list[Row]:
    """Every record that can be read, in the order of the log; damaged ones are passed over."""
    result = CliRunner().invoke(cli, ["store", "dump", str(root), "--json"])
    return [json.loads(line) for line in result.stdout.splitlines()]


def ran(*arguments: object) -> Any:
    """What a job's --json says."""
    result = CliRunner().invoke(cli, ["spark", *map(str, arguments), "--json"])
    assert result.exit_code in (0, 1) and not isinstance(result.exception, AssertionError), result.output
    return json.loads(result.stdout)
