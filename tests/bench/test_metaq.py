"""The benches beside MetaQ, of which all share one server."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import tiny


@pytest.mark.java
@pytest.mark.nightly
def test_metaq(tmp_path: Path) -> None:
    tiny.give_their_lines(tmp_path, tiny.METAQ)
