"""The Java store as a session-wide peer; every test that uses it is marked ``java``."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from tests.interop.java_client import JavaClients
from tests.interop.java_peer import LATER_VERSION, ROCKETMQ_VERSION, JavaStore
from tests.interop.metaq_peer import MetaqPeer
from tests.interop.mixes import MIXES, JavaMix, java_mix
from tests.ports import free_port


@pytest.fixture(scope="session")
def java_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaStore]:
    """MQLAKE_TEST_ROCKETMQ names another version: what its store does can then be seen by the same tests."""
    version = os.environ.get("MQLAKE_TEST_ROCKETMQ", ROCKETMQ_VERSION)
    with JavaStore(tmp_path_factory.mktemp("java"), version) as store:
        yield store


@pytest.fixture(scope="session")
def later_java_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaStore]:
    with JavaStore(tmp_path_factory.mktemp("later-java"), LATER_VERSION) as store:
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
        if {"java_store", "later_java_store", "java_clients"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.java)


@pytest.fixture(scope="session")
def metaq_zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZookeeper]:
    """A real ZooKeeper for the tests of MetaQ."""
    server = EmbeddedZookeeper(str(tmp_path_factory.mktemp("zookeeper")), free_port())
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def metaq_peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MetaqPeer]:
    """The original MetaQ client and broker."""
    with MetaqPeer(tmp_path_factory.mktemp("metaq-peer")) as peer:
        yield peer
