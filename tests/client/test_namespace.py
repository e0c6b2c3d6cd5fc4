from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.client.namespace import with_namespace, without_namespace

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
    assert without_namespace("ns", "other%T") == "other%T"
    assert without_namespace("ns", "%DLQ%ns%G") == "%DLQ%G"
    assert without_namespace("", "ns%T") == "ns%T"


def test_what_belongs_to_the_system_or_to_light_queues_is_of_no_namespace() -> None:
    for name in ("TBW102", "CID_RMQ_SYS_TRANS", "%LMQ%room-7", "SCHEDULE_TOPIC_XXXX", ""):
        assert with_namespace("ns", name) == name
