from __future__ import annotations

import dataclasses
import inspect
import re

import pytest

from mqlake.client import ConsumerConfig, MessageClientExt, ProducerConfig, blocking
from mqlake.client.config import ClientConfig, build_client_id, local_ip
from mqlake.message import MessageExt

UNITS = re.compile(r"second|\bms\b|bytes|MiB|messages|tries|offsets|calls|sends|queues|\(fast\)")


def test_client_ids() -> None:
    config = ClientConfig(client_ip="10.0.0.1", instance_name="i", unit_name="u")
    assert build_client_id(config) == "10.0.0.1@i@u"
    plain = ClientConfig(namesrv_addr="127.0.0.1:9876;10.0.0.1:9876")
    assert build_client_id(plain) != build_client_id(plain)
    assert build_client_id(plain).startswith("127.0.0.1@")
    assert local_ip("nonsense") == "127.0.0.1"


@pytest.mark.parametrize("config", [ClientConfig, ProducerConfig, ConsumerConfig])
def test_help_says_what_each_setting_means_and_its_unit(config: type) -> None:
    """`help()` shows a class's docstring and none of its fields."""
    said = dict(re.findall(r"^(\w+): (.+(?:\n {4}.+)*)", inspect.getdoc(config) or "", re.MULTILINE))
    assert list(said) == [field.name for field in dataclasses.fields(config)]
    for field in dataclasses.fields(config):
        if field.type in ("int", "float"):
            assert UNITS.search(said[field.name]), field.name
            assert not field.name.endswith("_s") or "second" in said[field.name], field.name


def test_help_of_a_message_names_what_a_listener_may_ask_it_for() -> None:
    text = inspect.getdoc(MessageClientExt) or ""
    for name in (
        *MessageExt.__slots__,
        *MessageClientExt.__slots__,
        "keys",
        "tags",
        "uniq_key",
        "properties",
        "read_topic",
    ):
        internal = name.startswith("_") or name in ("magic", "body_crc", "store_size", "sys_flag", "queue_id")
        if not (internal or name in ("physical_offset", "prepared_transaction_offset")):
            assert re.search(rf"\b{name}\b.*:", text), name


@pytest.mark.parametrize(
    "name", ["Producer", "TransactionMQProducer", "PushConsumer", "PullConsumer", "SimpleConsumer", "Admin"]
)
def test_help_of_the_blocking_classes(name: str) -> None:
    """Each says what it is; methods have the text of those that they wait for."""
    cls = getattr(blocking, name)
    assert cls.__doc__ and ("where" in cls.__doc__)
    for method, value in inspect.getmembers(cls, callable):
        assert method.startswith("_") or inspect.getdoc(value), f"{name}.{method}"
