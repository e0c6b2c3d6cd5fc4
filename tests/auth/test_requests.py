"""requests: every code that a broker or a name server answers has its rule, and each rule finds its names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.auth.evaluator import Need
from mqlake.auth.model import ResourceType
from mqlake.auth.requests import RULES, TO_CLIENTS, Context, Rule, UnclearRequestError
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand

TOPICS = {100: "Other", 200: "%RETRY%G", 300: "%RETRY%Foreign"}
CONTEXT = Context("C", TOPICS.get)


def needs(code: int, body: object = None, **fields: str) -> list[str]:
    data = None if body is None else json.dumps(body).encode()
    return [
        str(need) for need in RULES[code].needs(RemotingCommand(code, ext_fields=fields, body=data), CONTEXT)
    ]


def test_every_known_code_has_a_rule_or_goes_to_clients_only() -> None:
    assert {int(code) for code in RequestCode} - RULES.keys() - TO_CLIENTS == set()
    assert not RULES.keys() & TO_CLIENTS


def test_no_rule_is_open_to_everybody() -> None:
    for rule in RULES.values():
        assert rule.parts or rule.supers_only, rule
        assert all(part.actions for part in rule.parts), rule


@pytest.mark.parametrize(
    ("code", "fields", "expected"),
    [
        (10, {"topic": "T"}, ["Topic:T Pub"]),
        (10, {"topic": "%RETRY%G", "producerGroup": "mine"}, ["Group:G Sub"]),
        (310, {"b": "T", "a": "g"}, ["Topic:T Pub"]),
        (310, {"b": "%RETRY%Foreign", "a": "mine"}, ["Group:Foreign Sub"]),
        (325, {"b": "C_REPLY_TOPIC"}, ["Topic:C_REPLY_TOPIC Pub"]),
        (11, {"topic": "T", "consumerGroup": "G"}, ["Topic:T Sub", "Group:G Sub"]),
        (11, {"topic": "%RETRY%G", "consumerGroup": "G"}, ["Group:G Sub"]),
        (11, {"topic": "%RETRY%Foreign", "consumerGroup": "G"}, ["Group:Foreign Sub", "Group:G Sub"]),
        (361, {"topic": "T", "consumerGroup": "G"}, ["Topic:T Sub", "Group:G Sub"]),
        (200050, {"topic": "T", "consumerGroup": "G"}, ["Topic:T Sub", "Group:G Sub"]),
        (200051, {"topic": "%RETRY%G+T", "consumerGroup": "G"}, ["Topic:T Sub", "Group:G Sub"]),
        (200053, {"topic": "%RETRY%G_T", "consumerGroup": "G"}, ["Topic:T Sub", "Group:G Sub"]),
        (14, {"topic": "T", "consumerGroup": "G"}, ["Topic:T Sub|Get", "Group:G Sub|Get"]),
        (15, {"topic": "T", "consumerGroup": "G"}, ["Topic:T Sub|Update", "Group:G Sub|Update"]),
        (105, {"topic": "T"}, ["Topic:T Pub|Sub|Get"]),
        (105, {"topic": "%RETRY%G"}, ["Group:G Sub|Get"]),
        (36, {"group": "G", "offset": "100"}, ["Group:G Sub", "Topic:Other Sub"]),
        (36, {"group": "G", "offset": "200"}, ["Group:G Sub"]),
        (36, {"group": "G", "offset": "300"}, ["Group:G Sub", "Group:Foreign Sub"]),
        (37, {"commitLogOffset": "100"}, ["Topic:Other Pub"]),
        (37, {"commitLogOffset": "100", "topic": "T"}, ["Topic:Other Pub", "Topic:T Pub"]),
        (37, {"commitLogOffset": "7"}, []),
        (33, {"offset": "100", "topic": "T"}, ["Topic:Other Get"]),
        (309, {"consumerGroup": "G", "msgId": "7F0000010000000A" + f"{100:016X}"}, ["Group:G Sub", "Topic:Other Sub"]),
        (35, {"producerGroup": "p"}, []),
        (35, {"consumerGroup": "G"}, ["Group:G Sub"]),
        (208, {"consumerGroup": "G", "topicList": "A;B"}, ["Group:G Get", "Topic:A Get", "Topic:B Get"]),
        (308, {"topic": "T", "compareGroup": "G", "filterGroups": "A,B"},
         ["Topic:T Get", "Group:G Get", "Group:A Get", "Group:B Get"]),
        (17, {"topic": "T"}, ["Topic:T Create"]),
        (215, {"topic": "T"}, ["Topic:T Delete"]),
        (25, {}, ["Cluster:C Update"]),
        (26, {}, ["Cluster:C Get"]),
        (103, {"clusterName": "D"}, ["Cluster:D Update"]),
        (314, {"srcGroup": "A", "destGroup": "B"}, ["Group:B Update", "Group:A Get"]),
        (3001, {}, ["Cluster:C Update"]),
        (3005, {}, ["Cluster:C Get"]),
    ],
)  # fmt: skip
def test_needs_of_fields(code: int, fields: dict[str, str], expected: list[str]) -> None:
    assert needs(code, **fields) == expected


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (
            34,
            {
                "producerDataSet": [{"groupName": "p"}],
                "consumerDataSet": [
                    {"groupName": "G", "subscriptionDataSet": [{"topic": "T"}, {"topic": "%RETRY%G"}]},
                    {"groupName": "H", "subscriptionDataSet": [{"topic": "%RETRY%Foreign"}]},
                ],
            },
            ["Group:G Sub", "Group:H Sub", "Topic:T Sub", "Group:Foreign Sub"],
        ),
        (46, {"group": "G", "subscriptionData": {"topic": "T"}}, ["Group:G Sub", "Topic:T Sub"]),
        (41, {"consumerGroup": "G", "mqSet": [{"topic": "T", "queueId": 1}]}, ["Group:G Sub", "Topic:T Sub"]),
        (41, {"CONSUMER_GROUP": "G", "mq-set": {"topic": "T"}}, ["Group:G Sub", "Topic:T Sub"]),
        (
            18,
            {"topicConfigList": [{"topicName": "A"}, {"topicName": "B"}]},
            ["Topic:A Create", "Topic:B Create"],
        ),
        (200, {"groupName": "G"}, ["Group:G Create"]),
        (225, {"groupConfigList": [{"groupName": "G"}]}, ["Group:G Create"]),
        (400, {"topic": "T", "consumerGroup": "G"}, ["Topic:T Sub", "Group:G Sub"]),
        (401, {"topic": "T", "consumerGroup": "G"}, ["Topic:T Update", "Group:G Update"]),
        (200151, {"acks": [{"consumerGroup": "G", "topic": "T"}]}, ["Topic:T Sub", "Group:G Sub"]),
        (
            200151,
            {"acks": [{"c": "G", "t": "T"}, {"c": "H", "t": "T"}]},
            ["Topic:T Sub", "Group:G Sub", "Group:H Sub"],
        ),
    ],
)
def test_needs_of_bodies_which_are_read_as_processors_read_them(
    code: int, body: object, expected: list[str]
) -> None:
    assert sorted(needs(code, body)) == sorted(expected)


@pytest.mark.parametrize(
    ("code", "body"), [(310, None), (11, None), (34, "text"), (34, {"consumerDataSet": 7}), (41, None)]
)
def test_a_request_that_names_nothing_is_unclear(code: int, body: object) -> None:
    with pytest.raises(UnclearRequestError):
        needs(code, body)


def test_needs_are_literal() -> None:
    need = RULES[310].needs(RemotingCommand(310, ext_fields={"b": "T*"}), CONTEXT)[0]
    assert isinstance(need, Need) and need.resource.type is ResourceType.TOPIC and need.resource.name == "T*"


NAMES = st.sampled_from(
    ["T", "%RETRY%G", "%RETRY%G_T", "%RETRY%G+T", "%RETRY%Foreign", "G", "", "100", "C", "T;U"]
)
READ = sorted({name for rule in RULES.values() for name in rule.fields or ()})
REQUEST = st.dictionaries(
    st.sampled_from([*READ, "offset", "commitLogOffset", "topicList", "unknown"]), NAMES, max_size=8
)


@given(
    st.sampled_from([rule for rule in RULES.values() if rule.fields is not None]),
    REQUEST,
    REQUEST,
    st.binary(max_size=5),
)
def test_the_fields_of_a_rule_decide_what_it_needs(
    rule: Rule, fields: dict[str, str], others: dict[str, str], body: bytes
) -> None:
    """Decisions are kept by them: whatever else a request says may not make a difference."""

    def found(fields: dict[str, str], body: bytes) -> list[Need] | None:
        try:
            return rule.needs(RemotingCommand(rule.code, ext_fields=fields, body=body), CONTEXT)
        except UnclearRequestError:
            return None

    assert rule.fields is not None
    same = {name: value for name, value in fields.items() if name in rule.fields}
    others = {name: value for name, value in others.items() if name not in rule.fields}
    assert found(fields, b"") == found(same | others, body)


def test_rules_of_frequent_requests_are_decided_by_fields() -> None:
    assert RULES[310].fields == ("b",) and RULES[11].fields == ("topic", "consumerGroup", "consumerGroup")
    for code in (36, 34, 37, 33, 208, 200151):  # the body or the store, or several names in one field
        assert RULES[code].fields is None
