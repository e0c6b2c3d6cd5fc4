from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from mqlake.formats.columns import plain
from mqlake.native import columns as kernels
from tests.formats.columns_cases import working_with
from tests.native.uncompiled import uncompiled_columns


@pytest.fixture(
    scope="module", params=[plain, kernels, uncompiled_columns()], ids=["plain", "kernels", "uncompiled"]
)
def twin(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The column codecs, compiled and plain in turn."""
    with working_with(request.param):
        yield request.param
