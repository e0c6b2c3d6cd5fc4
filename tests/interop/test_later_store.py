"""Store directories change hands with RocketMQ 5.5.1: mqlake goes on with what it has written, keeps what it does not
know, and the other way round."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.formats.batch import encode_messages
from mqlake.message import Message, MessageExtBatch, MessageExtBrokerInner
from mqlake.store.check.verify import verify_store
from mqlake.store.config import MessageStoreConfig
from mqlake.store.message_store import DefaultMessageStore
from mqlake.store.read_only import ReadOnlyStore
from tests.interop.java_peer import SMALL_FILES, JavaStore, batch, item, put

pytestmark = pytest.mark.java

TOPICS = {"Inner": {"queue.type": "BatchCQ"}}
BROKERS = {"CLUSTER": "c", "MSG_REGION": "r"}
LATER_PROPERTIES = {"_SYS_MSG_PRIORITY_": "3", "__LITE_TOPIC": "lite", "E_T": "F", "TIMER_ROLL_LABEL": "R"}


def opened(root: Path, **settings: object) -> DefaultMessageStore:
    config = MessageStoreConfig.from_mapping({**SMALL_FILES, **settings, "storePathRootDir": str(root)})
    store = DefaultMessageStore(config, is_batch_topic=lambda topic: topic in TOPICS)
    store.load()
    store.start()
    return store


def sent_by_mqlake(store: DefaultMessageStore, name: str) -> None:
    single = MessageExtBrokerInner("T", name.encode(), properties=dict(LATER_PROPERTIES))
    assert store.put_message(single).is_ok
    items = [Message("", f"{name} {number}".encode(), properties={"own": "1"}) for number in range(2)]
    both = MessageExtBatch("T", encode_messages(items), properties=dict(BROKERS))
    assert store.put_messages(both).is_ok


@pytest.mark.nightly
def test_a_directory_goes_to_and_fro(later_java_store: JavaStore, tmp_path: Path) -> None:
    java, root = later_java_store, tmp_path / "store"
    assert java.peer.request("hello")["rocketmq"] == "V5_5_1"
    java.write(
        root,
        SMALL_FILES,
        [
            put("T", b"java", properties=LATER_PROPERTIES),
            batch("T", [item(b"java 0", properties={"own": "1"}), item(b"java 1")], properties=BROKERS),
            batch("Inner", [item(b"a"), item(b"b")], inner=True, uniqKey="U", properties=BROKERS),
        ],
        topics=TOPICS,
    )
    checkpoint = (root / "checkpoint").read_bytes()
    entries = {path.name for path in root.iterdir()}

    store = opened(root)
    sent_by_mqlake(store, "as 5.3.3")
    store.shutdown()
    store = opened(root, batchInheritsProperties=False)
    sent_by_mqlake(store, "as 5.5")
    store.shutdown()
    assert (root / "checkpoint").read_bytes()[40:48] == checkpoint[40:48], "logicsPhysicalOffset"
    assert entries - {"abort.bak"} <= {path.name for path in root.iterdir()}
    assert verify_store(root).ok

    contents = java.read(root, SMALL_FILES, topics=TOPICS)
    found = {each["body"]: each["properties"] for each in contents.queues["T", 0].messages}
    assert list(found) == [
        *(b"java", b"java 0", b"java 1"),
        *(b"as 5.3.3", b"as 5.3.3 0", b"as 5.3.3 1"),
        *(b"as 5.5", b"as 5.5 0", b"as 5.5 1"),
    ]
    assert found[b"java"] == found[b"as 5.3.3"] == found[b"as 5.5"] == LATER_PROPERTIES
    assert found[b"java 0"] == found[b"as 5.5 0"] == {"own": "1"}
    assert found[b"as 5.3.3 0"] == {"own": "1", **BROKERS}
    with ReadOnlyStore(root, SMALL_FILES) as readable:
        bodies = [each.body for each in readable.get_message("G", "T", 0, 0, 32).messages()]
    assert bodies == list(found)
