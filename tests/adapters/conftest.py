"""A cluster for the adapters: mqlake's, and RocketMQ's own in a JVM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.brokers import Broker, JavaBroker, MqlakeBroker

SETTINGS = {
    "timerWheelEnable": "true",
    "enablePropertyFilter": "true",
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
}


@pytest.fixture(scope="session")
def mqlake_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with MqlakeBroker(tmp_path_factory.mktemp("serve"), SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="session")
def java_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with JavaBroker(tmp_path_factory.mktemp("java"), SETTINGS) as broker:
        yield broker


AT_NIGHT = pytest.param("java", marks=[pytest.mark.java, pytest.mark.nightly])
"""What an adapter asks of a broker, tests/interop asks of both in a smaller way."""


@pytest.fixture(scope="session", params=["mqlake", AT_NIGHT])
def broker(request: pytest.FixtureRequest) -> Broker:
    found: Broker = request.getfixturevalue(f"{request.param}_broker")
    return found
