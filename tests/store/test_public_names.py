"""The public face of mqlake.store: every name it lists exists, and importing it costs nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import mqlake.store


@pytest.mark.parametrize("name", mqlake.store.__all__)
def test_every_listed_name_can_be_had(name: str) -> None:
    assert getattr(mqlake.store, name).__name__ == name


def test_the_lazy_table_and_the_list_agree() -> None:
    assert sorted(mqlake.store._HOME) == mqlake.store.__all__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = mqlake.store.Nothing


def test_importing_it_imports_neither_numpy_nor_numba() -> None:
    code = "import sys, mqlake.store; print([m for m in ('numpy', 'numba') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
