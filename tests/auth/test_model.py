"""model: texts of resources, and JSON in both of RocketMQ's forms, there and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given

from mqlake.auth import model
from mqlake.auth.model import Action, IllegalError, Resource, ResourceType, User, UserStatus, UserType
from mqlake.auth.storage import Storage
from tests.auth.people import ENTRIES, POLICIES, RESOURCE_TEXTS, USERS, acl, entry, state


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("*", "*"),
        ("topic:*", "Topic:*"),
        ("TOPIC:a*b", "Topic:a*"),
        ("Group:%RETRY%g", "Group:g"),
        ("Cluster:c", "Cluster:c"),
        ("Topic:a:b", "Topic:a:b"),
    ],
)
def test_a_resource_is_read_as_rocketmq_reads_it(text: str, normal: str) -> None:
    assert Resource.parse(text).text == normal


@pytest.mark.parametrize(
    "text", ["", None, "Topic", "Topic:", "Queue:a", "Unknown:a", "Any:a", ":a", "Group:%RETRY%"]
)
def test_what_is_no_resource_is_refused(text: str | None) -> None:
    with pytest.raises(IllegalError, match="The resource is null"):
        Resource.parse(text)


@given(RESOURCE_TEXTS)
def test_the_text_of_a_resource_is_the_same_resource(text: str) -> None:
    resource = Resource.parse(text)
    assert Resource.parse(resource.text) == resource


def test_a_prefix_covers_what_begins_with_it() -> None:
    covers = Resource.parse("Topic:ab*").covers
    assert covers(Resource.topic("ab")) and covers(Resource.topic("abc"))
    assert not covers(Resource.topic("a")) and not covers(Resource.group("abc"))
    assert Resource.parse("*").covers(Resource.cluster("x"))
    assert Resource.parse("Topic:*").covers(Resource.topic("x"))
    assert not Resource.parse("Topic:*").covers(Resource.group("x"))


@pytest.mark.parametrize(
    ("source", "ip", "included"),
    [
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "::ffff:10.1.2.3", True),
        ("10.1.2.3", "10.1.2.3", True),
        ("2001:db8::/32", "2001:db8::1", True),
        ("2001:db8::/32", "10.1.2.3", False),
        ("10.0.0.0/8", "no address", False),
    ],
)
def test_sources_are_addresses_and_networks(source: str, ip: str, included: bool) -> None:
    assert model.source_includes(source, ip) is included


def test_java_s_stored_forms_are_read_and_written_to_the_byte() -> None:
    """The two values that RocketMQ 5.3.3's classes wrote."""
    user = '{"password":"secret12","subjectType":1,"userStatus":1,"userType":2,"username":"alice"}'
    read = model.user_from_stored(json.loads(user), lambda name, text: text)
    assert read == User("alice", "secret12", UserType.NORMAL, UserStatus.ENABLE)
    assert json.dumps(model.user_to_stored(read, read.password), separators=(",", ":")) == user
    stored = (
        '{"policies":[{"entries":[{"actions":[3,4],"decision":1,"environment":{"sourceIps":["10.0.0.0/8"]},'
        '"resource":{"resourceName":"T","resourcePattern":2,"resourceType":4}}],"policyType":1}],'
        '"subject":{"subjectType":1,"username":"alice"}}'
    )
    of_alice = model.acl_from_stored(json.loads(stored))
    assert of_alice == acl("alice", entry("Topic:T", Action.PUB, Action.SUB, sources=("10.0.0.0/8",)))
    assert json.dumps(model.acl_to_stored(of_alice), separators=(",", ":")) == stored


@given(USERS, POLICIES)
def test_both_forms_there_and_back(user: User, policies: tuple[model.Policy, ...]) -> None:
    assert model.user_from_stored(model.user_to_stored(user, user.password), lambda name, text: text) == user
    made = model.Acl(user.name, policies)
    assert model.acl_from_stored(json.loads(json.dumps(model.acl_to_stored(made)))) == made
    info = json.loads(json.dumps(model.acl_to_info(made)))
    assert model.policies_from_info(info["policies"]) == policies
    assert model.username_of(info["subject"]) == model.username_of(user.subject) == user.name


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resource": None}, "The resource is null."),
        ({"resource": ["Topic:T"]}, "The resource is null."),
        ({"resource": 7}, "The resource is null."),
        ({"actions": []}, "The actions is empty."),
        ({"actions": ["Fly"]}, "The actions is empty."),
        ({"actions": ["Any"]}, "The actions can not be Any."),
        ({"sourceIps": ["10.0.0.1/99"]}, "The source ip is invalid."),
        ({"decision": "Maybe"}, "The decision is null or illegal."),
        ({"decision": None}, "The decision is null or illegal."),
    ],
)
def test_an_entry_that_cannot_be_is_refused_in_rocketmq_s_words(change: dict[str, object], text: str) -> None:
    good = {"resource": "Topic:T", "actions": ["Pub", "Fly"], "sourceIps": ["10.0.0.1"], "decision": "allow"}
    assert len(model.policies_from_info([{"entries": [good]}])[0].entries) == 1
    with pytest.raises(IllegalError, match=text):
        model.policies_from_info([{"entries": [good | change]}])


def test_a_resource_that_begins_with_a_star_is_any(tmp_path: Path) -> None:
    """An empty prefix could be written, and then stopped the next start."""
    assert Resource.parse("Topic:*abc*") == Resource.parse("Topic:*")
    made = state(entry("Topic:*abc", Action.PUB))
    Storage(str(tmp_path)).write(made)
    assert Storage(str(tmp_path)).load() == made
    stored = {"resourceName": "", "resourcePattern": 3, "resourceType": 4}
    policies = [{"entries": [{"actions": [3], "decision": 1, "resource": stored}]}]
    of_java = model.acl_from_stored({"policies": policies, "subject": {"username": "alice"}})
    assert of_java == acl("alice", entry("Topic:*", Action.PUB))


def test_other_shapes_are_refused_too() -> None:
    for policies in (None, "text", [1], [{"entries": [2]}], [{"policyType": "Odd"}]):
        with pytest.raises(IllegalError):
            model.policies_from_info(policies)
    for subject in (None, "", "alice", "Role:alice", "User:"):
        with pytest.raises(IllegalError):
            model.username_of(subject)


@pytest.mark.parametrize("value", [None, "", 7, ["x"]])
def test_a_stored_user_has_a_name_and_a_password(value: object) -> None:
    stored = model.user_to_stored(User("alice", "s3cret"), "s3cret")
    for key, text in (("username", "The username is blank"), ("password", "password can not be blank")):
        with pytest.raises(IllegalError, match=text):
            model.user_from_stored(stored | {key: value}, lambda name, text: text)
    with pytest.raises(IllegalError, match="The username is blank"):
        model.user_from_stored(stored | {"username": " "}, lambda name, text: text)


def test_no_representation_shows_a_password() -> None:
    assert "s3cret" not in repr(User("alice", "s3cret")) + str(User("alice", "s3cret"))
    shown = model.user_to_info(User("alice", "s3cret"), with_password=False)
    assert shown == {"username": "alice", "userType": "Normal", "userStatus": "enable"}
    assert model.user_to_info(User("alice", "s3cret"), with_password=True)["password"] == "s3cret"


@given(ENTRIES)
def test_an_entry_has_a_stable_hash_and_type(made: model.PolicyEntry) -> None:
    assert made in {made} and made.resource.type is not ResourceType.UNKNOWN
