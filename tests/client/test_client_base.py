from __future__ import annotations

import pytest

from mqlake.client.client_base import check_group
from mqlake.errors import ConfigError


def test_groups() -> None:
    check_group("a-Z_0|%")
    for bad in ("", "a b", "ü", "x" * 256):
        with pytest.raises(ConfigError, match="letters"):
            check_group(bad)
