from __future__ import annotations

from mqlake.broker.broker import Broker
from mqlake.broker.config import read_settings
from mqlake.remoting.codes import ResponseCode
from tests.broker.live import Peer, on_a_broker


def make(tmp_path, **settings: str) -> Broker:
    properties = {"storePathRootDir": str(tmp_path), **settings}
    config, store_config, _ = read_settings(properties)
    return Broker(config, store_config)


def test_where_it_is(tmp_path):
    broker = make(tmp_path, brokerIP1="::1")
    broker.port = 10911
    assert broker.broker_addr == "[::1]:10911"
    assert broker.store_host == ("::1", 10911)


def test_a_name_is_registered_and_its_address_is_stored(tmp_path):
    """As containers have it, which find each other by their names."""
    broker = make(tmp_path, brokerIP1="localhost")
    broker.port = 10911
    assert broker.broker_addr == "localhost:10911"
    assert broker.store_host == ("127.0.0.1", 10911)

    async def scene(peer: Peer) -> None:
        assert (await peer.send("T")).code == ResponseCode.SUCCESS

    on_a_broker(tmp_path / "sends", scene, brokerIP1="localhost")


def test_a_changed_setting_counts_at_once(tmp_path):
    broker = make(tmp_path)
    topics = broker.topic_config_manager
    topics.init()
    assert topics.create_topic_in_send_message_method("A", "TBW102", "", 4, 0) is not None
    broker.config = broker.config.replaced({"autoCreateTopicEnable": "false"})
    assert topics.create_topic_in_send_message_method("B", "TBW102", "", 4, 0) is None
