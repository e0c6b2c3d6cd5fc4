from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqlake.metaq.client.balance import LoadBalanceStrategyType, partitions_of

NAMES = st.lists(st.text("abc123-", min_size=1, max_size=6), min_size=1, max_size=6, unique=True)
PARTITIONS = st.lists(
    st.builds("{}-{}".format, st.integers(0, 3), st.integers(0, 20)), max_size=30, unique=True
)


def test_ranges_in_the_order_of_the_text() -> None:
    partitions = [f"0-{i}" for i in range(11)]
    shares = [partitions_of(name, ["b", "a", "c"], partitions) for name in "abc"]
    assert shares == [
        ["0-0", "0-1", "0-10", "0-2"],
        ["0-3", "0-4", "0-5", "0-6"],
        ["0-7", "0-8", "0-9"],
    ]
    assert partitions_of("x", ["a"], partitions) == []
    assert partitions_of("b", ["a", "b"], ["0-0"]) == []


def test_the_ring_of_the_java_client() -> None:
    """Else consumers of both kinds in one group would not agree."""
    consist = LoadBalanceStrategyType.CONSIST
    partitions = [f"{broker}-{number}" for broker in range(2) for number in range(12)]
    consumers = ["g_b", "g_a", "g_c"]
    assert [" ".join(partitions_of(name, consumers, partitions, consist)) for name in sorted(consumers)] == [
        "0-1 0-10 0-2 0-3 0-6 1-0 1-1 1-11 1-2 1-4 1-7",
        "0-0 0-11 0-4 0-9 1-10",
        "0-5 0-7 0-8 1-3 1-5 1-6 1-8 1-9",
    ]
    assert partitions_of("x", consumers, partitions, consist) == []


@given(NAMES, PARTITIONS, st.sampled_from(LoadBalanceStrategyType))
def test_every_partition_has_one_owner(
    consumers: list[str], partitions: list[str], strategy: LoadBalanceStrategyType
) -> None:
    shares = [partitions_of(name, consumers, partitions, strategy) for name in consumers]
    assert sorted(each for share in shares for each in share) == sorted(partitions)


def test_the_ring_moves_only_what_it_must() -> None:
    partitions = [f"{b}-{i}" for b in range(4) for i in range(50)]
    consist = LoadBalanceStrategyType.CONSIST
    before = {p: n for n in "abc" for p in partitions_of(n, ["a", "b", "c"], partitions, consist)}
    after = {p: n for n in "abcd" for p in partitions_of(n, ["a", "b", "c", "d"], partitions, consist)}
    assert all(after[p] in (before[p], "d") for p in partitions)
    assert 10 < sum(owner == "d" for owner in after.values()) < 100
