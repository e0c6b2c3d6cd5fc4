"""The table of configuration keys against the classes of the Java broker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tools import config_table

from mqlake.auth import config as auth_config
from mqlake.base import keys_since_5_4
from mqlake.base.rocketmq_keys import AUTH_KEYS, BROKER_KEYS, NAMESRV_KEYS, REMOTING_KEYS, STORE_KEYS
from mqlake.base.settings import Setting, UnusedKey, text_of
from mqlake.broker import config as broker_config
from mqlake.broker.config import BrokerConfig, all_values
from mqlake.namesrv import config as namesrv_config
from mqlake.remoting import tls
from mqlake.store import config as store_config
from mqlake.store.config import MessageStoreConfig
from tests.interop.java_wire import JavaWire

pytestmark = pytest.mark.java

PACKAGE = "org.apache.rocketmq."
BROKER, STORE = "common.BrokerConfig", "store.config.MessageStoreConfig"
AUTH, NAMESRV = "auth.config.AuthConfig", "common.namesrv.NamesrvConfig"
SERVER, CLIENT = "remoting.netty.NettyServerConfig", "remoting.netty.NettyClientConfig"
NUMBERS_OF_THREADS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:ActiveProcessorCount=4")
OF_THE_MACHINE = {"brokerName", "brokerIP1", "brokerIP2", "namesrvAddr", "storePathRootDir"}
OF_THE_MACHINE |= {"kvConfigPath", "configStorePath"}
SET_BY_JAVAS_STARTUP = {"listenPort"}


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaWire]:
    with JavaWire(tmp_path_factory.mktemp("keys"), jvm=NUMBERS_OF_THREADS) as peer:
        yield peer


def keys_of(java: JavaWire, *kinds: str) -> dict[str, Any]:
    """Key → default as text, None for null."""
    found = {}
    for kind in kinds:
        for key in java.request("settings", **{"class": PACKAGE + kind})["keys"]:
            found.setdefault(key["name"], key.get("value"))
    return found


@pytest.mark.parametrize(
    ("kinds", "acted_on", "unused"),
    [
        ([BROKER], broker_config.SETTINGS, BROKER_KEYS),
        ([STORE], store_config.SETTINGS, STORE_KEYS),
        ([SERVER, CLIENT], broker_config.SETTINGS, REMOTING_KEYS),
        ([SERVER], namesrv_config.SETTINGS, REMOTING_KEYS),
        ([NAMESRV], namesrv_config.SETTINGS, NAMESRV_KEYS),
        ([AUTH], auth_config.SETTINGS, AUTH_KEYS),
    ],
)
def test_every_key_of_java_is_sorted_and_has_its_default(
    java: JavaWire, kinds: list[str], acted_on: Mapping[str, Setting], unused: Mapping[str, UnusedKey]
) -> None:
    keys = keys_of(java, *kinds)
    keys.pop("aclEnable", None)  # of the broker there, of access control here
    assert keys.keys() <= acted_on.keys() | unused.keys()
    for key, default in keys.items():
        if key in acted_on:
            if key not in OF_THE_MACHINE | SET_BY_JAVAS_STARTUP:
                assert acted_on[key].default_text == (default or ""), key
        else:
            ours = unused[key].default
            assert (None if ours is None else text_of(ours)) == default, key
    if kinds != [SERVER]:
        assert unused.keys() - keys.keys() == set(), "no key that Java does not have"


def test_the_list_of_rocketmqs_keys(java: JavaWire) -> None:
    """tools/config_table.py tells by it whose a key is."""
    for kind in (BROKER, STORE, SERVER, CLIENT, AUTH, NAMESRV):
        assert config_table.keys_of({kind.rpartition(".")[2]}) == keys_of(java, kind).keys()


@pytest.mark.nightly
def test_a_configuration_of_a_later_rocketmq_is_understood(tmp_path: Path) -> None:
    """5.5.1 has all keys of `keys_since_5_4`, with these defaults, and no others that are unknown here. Of those that
    act here and that 5.3.3 does not have, the ones marked as later are its."""
    with JavaWire(tmp_path, jvm=NUMBERS_OF_THREADS, version="5.5.1") as java:
        of_broker = keys_of(java, BROKER)
        of_store = keys_of(java, STORE)
    for keys, later in ((of_broker, keys_since_5_4.BROKER_KEYS), (of_store, keys_since_5_4.STORE_KEYS)):
        assert [key for key in keys if key not in broker_config.KEYS] == []
        assert {key: keys.get(key) for key in later} == {
            key: text_of(known.default) for key, known in later.items() if known.default is not None
        }
        assert not later.keys() & (BROKER_KEYS.keys() | STORE_KEYS.keys() | broker_config.SETTINGS.keys())
    own = {
        key: known for key, known in {**broker_config.SETTINGS, **store_config.SETTINGS}.items() if known.own
    }
    assert own.keys() & (of_broker.keys() | of_store.keys()) == {
        key for key, known in own.items() if known.later
    }


def test_no_key_is_sorted_twice_or_made_up(java: JavaWire) -> None:
    javas = keys_of(java, BROKER, STORE, SERVER, CLIENT)
    ours = {**broker_config.SETTINGS, **store_config.SETTINGS}
    assert ours.keys() - javas.keys() == {key for key, known in ours.items() if known.own}
    for table in (BROKER_KEYS, STORE_KEYS, REMOTING_KEYS, AUTH_KEYS):
        assert not table.keys() & (ours.keys() | auth_config.SETTINGS.keys())
    javas |= keys_of(java, AUTH)
    made_up = auth_config.SETTINGS.keys() - javas.keys()
    assert made_up == {key for key, known in auth_config.SETTINGS.items() if known.own}


def test_the_values_listed_are_those_that_java_lists(java: JavaWire) -> None:
    """GET_BROKER_CONFIG of the Java broker prints all fields that are not null."""
    javas = keys_of(java, BROKER, STORE, SERVER, CLIENT)
    listed = all_values(BrokerConfig(), MessageStoreConfig()).keys()
    null_in_java = {key for key, default in javas.items() if default is None}
    assert javas.keys() - null_in_java <= listed
    own = {key for key, known in broker_config.KEYS.acted_on.items() if known.own}
    assert listed - javas.keys() == own - auth_config.SETTINGS.keys()


def test_the_keys_of_tls(java: JavaWire) -> None:
    names = set(java.request("tls")["keys"])
    assert names == tls.KEYS
