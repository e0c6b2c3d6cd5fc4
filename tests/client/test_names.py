"""Namespaces, groups, client ids, subscriptions, signatures: what is made of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.api.acl import sign
from mqlake.client.client_base import check_group
from mqlake.client.config import ClientConfig, build_client_id, local_ip
from mqlake.client.consume.subscription import MessageSelector, build_subscription_data
from mqlake.client.namespace import with_namespace, without_namespace
from mqlake.errors import ConfigError
from mqlake.remoting.command import RemotingCommand

NAMES = st.text("abcXYZ019_-", min_size=1, max_size=12)


@given(NAMES, NAMES, st.sampled_from(["", "%RETRY%", "%DLQ%"]))
def test_a_namespace_comes_and_goes(namespace: str, name: str, prefix: str) -> None:
    full = with_namespace(namespace, prefix + name)
    assert with_namespace(namespace, full) == full and without_namespace(namespace, full) == prefix + name
    assert with_namespace("", name) == without_namespace("", name) == name


def test_namespaces_as_rocketmq_writes_them() -> None:
    assert with_namespace("ns", "T") == "ns%T"
    assert with_namespace("ns", "%RETRY%G") == "%RETRY%ns%G"
    assert with_namespace("ns", "%DLQ%ns%G") == "%DLQ%ns%G"
    assert with_namespace("ns", "TBW102") == "TBW102"
    assert without_namespace("ns", "other%T") == "other%T"


def test_client_ids() -> None:
    config = ClientConfig(client_ip="10.0.0.1", instance_name="i", unit_name="u")
    assert build_client_id(config) == "10.0.0.1@i@u"
    plain = ClientConfig(namesrv_addr="127.0.0.1:9876;10.0.0.1:9876")
    assert build_client_id(plain) != build_client_id(plain)
    assert build_client_id(plain).startswith("127.0.0.1@")
    assert local_ip("nonsense") == "127.0.0.1"


def test_groups() -> None:
    check_group("a-Z_0|%")
    for bad in ("", "a b", "ü", "x" * 256):
        with pytest.raises(ConfigError, match="letters"):
            check_group(bad)


def test_subscriptions() -> None:
    everything = build_subscription_data("T")
    assert (everything.sub_string, everything.tags_set, everything.expression_type) == ("*", set(), "TAG")
    tags = build_subscription_data("T", " a||b  ||  ")
    assert tags.tags_set == {"a", "b"} and tags.code_set == {97, 98}
    condition = build_subscription_data("T", MessageSelector.by_sql("a > 1"))
    assert (condition.sub_string, condition.expression_type, condition.code_set) == ("a > 1", "SQL92", set())
    for bad in (" || ", MessageSelector.by_tag("||")):
        with pytest.raises(ConfigError):
            build_subscription_data("T", bad)
    with pytest.raises(ConfigError):
        MessageSelector.by_sql(" ")


def test_signatures() -> None:
    """What RocketMQ's AclClientRPCHook (5.3.3) makes of the same command."""
    command = RemotingCommand(10, ext_fields={"b": "v2", "a": "v1"}, body=b"body")
    for _ in range(2):  # a second time, as for a retry
        sign(command, "key", "secret")
        assert command.ext_fields == {
            "a": "v1",
            "b": "v2",
            "AccessKey": "key",
            "Signature": "/fcHhhYM3aWRwxsneFw0WPOV89g=",
        }
