"""StoreView: how much one pull brings."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from mqlake.formats.batch import encode_messages
from mqlake.message import PROPERTY_INNER_NUM, PROPERTY_KEYS, Message, MessageExtBrokerInner, MessageSysFlag
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.results import GetMessageStatus

INNER = MessageSysFlag.NEED_UNWRAP_FLAG | MessageSysFlag.INNER_BATCH_FLAG


@pytest.fixture
def store(tmp_path: Path) -> Iterator[DefaultMessageStore]:
    config = MessageStoreConfig.from_mapping({"mappedFileSizeCommitLog": 65536, "maxIndexNum": 100})
    config = dataclasses.replace(config, store_path_root_dir=str(tmp_path))
    with DefaultMessageStore(config, is_batch_topic=lambda topic: topic == "Batches") as store:
        store.load()
        store.start()
        yield store


def put_inner_batches(store: DefaultMessageStore, *counts: int) -> None:
    for count in counts:
        batch = MessageExtBrokerInner("Batches", encode_messages([Message("Batches", b"x")] * count))
        batch.sys_flag, batch.properties = INNER, {PROPERTY_INNER_NUM: str(count)}
        assert store.put_message(batch).is_ok
    assert store.wait_until_dispatched(60)


@pytest.mark.parametrize(
    ("max_count", "bases", "messages"),
    [(1, [0], 2), (2, [0], 2), (4, [0], 2), (5, [0, 2], 5), (9, [0, 2, 5], 9), (0, [0], 2)],
)
def test_an_inner_batch_counts_as_all_its_messages(
    store: DefaultMessageStore, max_count: int, bases: list[int], messages: int
) -> None:
    put_inner_batches(store, 2, 3, 4)
    got = store.get_message("group", "Batches", 0, 0, max_count)
    assert got.status is GetMessageStatus.FOUND
    assert (got.queue_offsets, got.message_count, got.next_begin_offset) == (bases, messages, messages)


def test_whoever_asks_for_none_gets_one(store: DefaultMessageStore) -> None:
    for _ in range(3):
        assert store.put_message(MessageExtBrokerInner("T", b"x")).is_ok
    assert store.wait_until_dispatched(60)
    got = store.get_message("group", "T", 0, 1, 0)
    assert (list(got.queue_offsets), got.next_begin_offset) == ([1], 2)


def test_a_message_with_two_keys_of_one_hash_counts_once(store: DefaultMessageStore) -> None:
    """Java's hash of AaAa is that of BBBB."""
    for body, keys in ((b"first", "BBBB"), (b"second", "AaAa BBBB"), (b"third", "AaAa")):
        message = MessageExtBrokerInner("T", body)
        message.properties = {PROPERTY_KEYS: keys}
        assert store.put_message(message).is_ok
    assert store.wait_until_dispatched(60)
    found = [[m.body for m in store.query_message("T", "BBBB", count).messages()] for count in (1, 2, 3)]
    assert found == [[b"second"], [b"first", b"second"], [b"first", b"second"]]
