"""One `mqlake serve` for the tests that need a whole cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.brokers import MqlakeBroker


@pytest.fixture(scope="session")
def mqlake_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    settings = {"enablePropertyFilter": "true", "messageDelayLevel": "1s 1s 1s 1s 1s"}
    with MqlakeBroker(tmp_path_factory.mktemp("serve"), settings) as started:
        yield started
