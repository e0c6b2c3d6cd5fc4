"""The Java store as a session-wide peer; every test that uses it is marked ``java``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.interop.java_client import JavaClients
from tests.interop.java_peer import JavaStore
from tests.interop.mixes import MIXES, JavaMix, java_mix


@pytest.fixture(scope="session")
def java_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaStore]:
    with JavaStore(tmp_path_factory.mktemp("java")) as store:
        yield store


@pytest.fixture(scope="session")
def java_clients(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    with JavaClients(tmp_path_factory.mktemp("clients")) as clients:
        yield clients


@pytest.fixture(scope="session", params=MIXES)
def mixed_by_java(
    java_store: JavaStore, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> JavaMix:
    return java_mix(java_store, tmp_path_factory.mktemp("mix"), MIXES[request.param])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"java_store", "java_clients"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.java)
