"""evaluator: the documented order, against an oracle that is written another way; no change opens more than it says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.auth.evaluator import Need, evaluate, need
from mqlake.auth.model import (
    Acl,
    Action,
    Decision,
    Pattern,
    Policy,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    User,
    UserType,
)
from tests.auth.people import ALICE, ENTRIES, IPS, NAMES, POLICIES, acl, entry

T = need(Resource.topic("abc"), Action.PUB)
NEEDS = st.builds(
    Need,
    st.builds(Resource, st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]), NAMES),
    st.frozensets(st.sampled_from(Action), min_size=1, max_size=2),
)


def allowed(*entries: PolicyEntry, default: tuple[PolicyEntry, ...] = (), wanted: Need = T) -> bool:
    return evaluate(ALICE, acl("alice", *entries, default=default), wanted, "10.1.2.3").allowed


def test_nothing_is_allowed_without_an_entry() -> None:
    assert not allowed()
    assert not evaluate(ALICE, None, T, "10.1.2.3").allowed
    why = evaluate(ALICE, None, T, "10.1.2.3").why
    assert why == "User:alice has no permission to access Topic:abc from 10.1.2.3, no matched policies."


def test_a_super_user_needs_no_acl() -> None:
    deny = acl("root", entry("*", Action.ALL, decision=Decision.DENY))
    assert evaluate(User("root", "x", UserType.SUPER), deny, T, "1.1.1.1").allowed


def test_a_name_before_prefixes_the_longer_prefix_before_the_shorter_any_last() -> None:
    deny = Decision.DENY
    for order in (1, -1):
        for first, second, expected in (
            (entry("Topic:abc", Action.PUB), entry("Topic:ab*", Action.PUB, decision=deny), True),
            (entry("Topic:abc", Action.PUB, decision=deny), entry("Topic:ab*", Action.PUB), False),
            (entry("Topic:abc", Action.PUB), entry("Topic:abc*", Action.PUB, decision=deny), True),
            (entry("Topic:a*", Action.PUB), entry("Topic:*", Action.PUB, decision=deny), True),
            (entry("Topic:ab*", Action.PUB, decision=deny), entry("Topic:a*", Action.PUB), False),
            (entry("Topic:ab*", Action.PUB), entry("Topic:a*", Action.PUB, decision=deny), True),
            (entry("Topic:a*", Action.PUB, decision=deny), entry("Topic:*", Action.PUB), False),
            (entry("Topic:*", Action.PUB, decision=deny), entry("*", Action.PUB), False),
            (entry("Topic:abc", Action.PUB), entry("Topic:abc", Action.ALL, decision=deny), False),
        ):
            assert allowed(*(first, second)[::order]) is expected, (first, second)


def test_the_default_policy_counts_only_where_the_custom_one_says_nothing() -> None:
    default = (entry("Topic:abc", Action.PUB),)
    assert allowed(default=default)
    assert not allowed(entry("Topic:*", Action.PUB, decision=Decision.DENY), default=default)
    assert allowed(entry("Topic:*", Action.SUB, decision=Decision.DENY), default=default)


def test_addresses_and_actions_decide_whether_an_entry_fits() -> None:
    assert not allowed(entry("Topic:abc", Action.PUB, sources=("192.168.0.0/16",)))
    assert allowed(entry("Topic:abc", Action.PUB, sources=("192.168.0.0/16", "10.1.2.3")))
    assert not allowed(entry("Topic:abc", Action.SUB))
    assert allowed(entry("Topic:abc", Action.GET), wanted=need(T.resource, Action.SUB, Action.GET))
    assert allowed(entry("Topic:abc", Action.GET), wanted=need(T.resource, Action.ANY))


def oracle(of_user: Acl, wanted: Need, ip: str) -> bool:
    """The documentation, step by step: the classes of entries from the most specific on, each with Deny first."""
    for type_ in (PolicyType.CUSTOM, PolicyType.DEFAULT):
        all_entries = [each for policy in of_user.policies if policy.type is type_ for each in policy.entries]
        name = wanted.resource.name
        classes = [[(wanted.resource.type, Pattern.LITERAL, name)]]
        classes += [
            [(wanted.resource.type, Pattern.PREFIXED, name[:size])] for size in range(len(name), 0, -1)
        ]
        classes += [[(wanted.resource.type, Pattern.ANY, "")], [(ResourceType.ANY, Pattern.ANY, "")]]
        for keys in classes:
            decisions = set()
            for each in all_entries:
                key = (each.resource.type, each.resource.pattern, each.resource.name)
                acts = (
                    Action.ALL in each.actions
                    or Action.ANY in wanted.actions
                    or bool(each.actions & wanted.actions)
                )
                if key in keys and acts and each.includes_source(ip):
                    decisions.add(each.decision)
            if decisions:
                return decisions == {Decision.ALLOW}
    return False


@given(POLICIES, NEEDS, IPS)
def test_decisions_are_those_of_the_documentation(
    policies: tuple[Policy, ...], wanted: Need, ip: str
) -> None:
    of_alice = Acl("alice", policies)
    assert evaluate(ALICE, of_alice, wanted, ip).allowed is oracle(of_alice, wanted, ip)


@given(POLICIES, NEEDS, IPS, st.randoms(use_true_random=False))
def test_the_order_of_entries_does_not_matter(
    policies: tuple[Policy, ...], wanted: Need, ip: str, random: object
) -> None:
    shuffled = []
    for policy in policies:
        entries = list(policy.entries)
        random.shuffle(entries)  # type: ignore[attr-defined]
        shuffled.append(Policy(policy.type, tuple(entries)))
    shuffled.reverse()
    before = evaluate(ALICE, Acl("alice", policies), wanted, ip)
    assert before.allowed is evaluate(ALICE, Acl("alice", tuple(shuffled)), wanted, ip).allowed


@given(POLICIES, ENTRIES, NEEDS, IPS)
def test_an_added_entry_changes_only_what_it_covers(
    policies: tuple[Policy, ...], added: PolicyEntry, wanted: Need, ip: str
) -> None:
    """Allow opens nothing but what it names, Deny opens nothing at all."""
    before = evaluate(ALICE, Acl("alice", policies), wanted, ip).allowed
    grown = (*policies, Policy(PolicyType.CUSTOM, (added,)))
    after = evaluate(ALICE, Acl("alice", grown), wanted, ip).allowed
    if after and not before:
        assert added.decision is Decision.ALLOW
        assert added.resource.covers(wanted.resource) and added.includes_source(ip)
        assert Action.ALL in added.actions or Action.ANY in wanted.actions or added.actions & wanted.actions
    if before and not after:
        assert added.decision is Decision.DENY
