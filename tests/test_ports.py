"""Ports that tests give to servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests import ports


def test_no_other_process_has_the_same_ports_whatever_its_directory_for_temporary_files(
    tmp_path: Path,
) -> None:
    script = "from tests import ports; print(*ports._mine)"
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    theirs = {int(port) for port in said.split()}
    assert theirs and not theirs & set(ports._mine)


def test_a_port_that_was_given_is_given_again_as_late_as_possible() -> None:
    given = [ports.free_port() for _ in range(50)]
    first = ports.free_ports(4)
    assert len(set(given)) == 50 and not set(given) & set(range(first, first + 4))
