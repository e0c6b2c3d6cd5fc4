from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from mqlake.compiled.kernels import columns as kernels
from mqlake.formats.columns import plain
from tests.formats.columns_cases import working_with


@pytest.fixture(scope="module", params=[plain, kernels], ids=["plain", "kernels"])
def twin(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The column codecs, compiled and plain in turn."""
    with working_with(request.param):
        yield request.param
