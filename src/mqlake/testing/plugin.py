"""The pytest plugin of mqlake: the fixture `rocketmq`. pytest loads it by its entry point; PYTEST_DONT_REWRITE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from mqlake.testing import RocketMQ


@pytest.fixture(scope="session")
def rocketmq() -> Iterator[RocketMQ]:
    """A real RocketMQ broker and name server, started for this test session (with xdist: for this worker).

    `rocketmq.namesrv` is the address for clients, `rocketmq.topic()` a topic name of this test's own.
    """
    from mqlake.testing import RocketMQ

    with RocketMQ() as running:
        yield running
