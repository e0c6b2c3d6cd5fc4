"""How long who guesses secrets has to wait, and who does not."""

from __future__ import annotations

import pytest

from mqlake.console import brake
from mqlake.console.brake import FORGOTTEN_S, Brake, network_of
from tests.clock import Clock


def guesses(
    brake: Brake, clock: Clock, seconds: float, tries: list[tuple[str, str]], step_s: float = 4.0
) -> int:
    """How many tries are taken when these are made again and again for so long."""
    taken, end = 0, clock.now + seconds
    while clock.now < end:
        for user, address in tries:
            taken += brake.begin(user, address) == 0.0
        clock.now += step_s
    return taken


def test_the_pauses_double_up_to_five_minutes() -> None:
    clock = Clock(1000.0)
    tried = Brake(clock)
    assert [tried.begin("admin", "192.0.2.1") for _ in range(5)] == [0.0] * 5
    pauses = []
    for _ in range(11):
        pauses.append(tried.begin("admin", "192.0.2.1"))
        assert tried.begin("admin", "192.0.2.1") == pauses[-1]  # what is refused makes it no longer
        clock.now += pauses[-1]
        assert tried.begin("admin", "192.0.2.1") == 0.0
    assert pauses == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.parametrize(
    ("tries", "at_most"),
    [
        ([("admin", "192.0.2.1")], 5 + 9 + 12),
        ([("admin", f"192.0.2.{last}") for last in range(40)], 20 + 6 + 60),
        ([(f"user-{number}", "192.0.2.1") for number in range(40)], 20 + 6 + 60),
        ([(f"user-{number}", f"192.0.2.{number}") for number in range(40)], 100 + 3600),
        ([("admin", f"2001:db8::{last:x}") for last in range(40)], 5 + 9 + 12),
    ],
    ids=["one", "many addresses", "many users", "many of both", "one /64"],
)
def test_an_hour_of_guessing_gets_few_tries(tries: list[tuple[str, str]], at_most: int) -> None:
    clock = Clock(1000.0)
    assert guesses(Brake(clock), clock, 3600, tries) <= at_most


@pytest.mark.parametrize("users", ["one", "many"])
def test_twenty_tries_are_free_of_a_user_and_of_a_network(users: str) -> None:
    tried = Brake(Clock(1000.0))
    tries = [("admin", f"192.0.2.{n}") if users == "one" else (f"user-{n}", "192.0.2.1") for n in range(21)]
    assert [tried.begin(*each) for each in tries] == [0.0] * 20 + [1.0]


def test_who_has_logged_in_from_there_is_not_locked_out_by_who_guesses_elsewhere() -> None:
    clock = Clock(1000.0)
    brake = Brake(clock)
    assert brake.begin("admin", "10.0.0.1") == 0.0
    brake.passed("admin", "10.0.0.1")
    guesses(brake, clock, 600, [("admin", f"192.0.2.{last}") for last in range(100)])
    assert brake.begin("admin", "10.0.0.2") > 0
    for _ in range(5):
        assert brake.begin("admin", "10.0.0.1") == 0.0
    assert brake.begin("admin", "10.0.0.1") > 0  # its own failures count


def test_a_right_secret_and_a_broker_that_is_away_are_no_failures() -> None:
    clock = Clock(1000.0)
    brake = Brake(clock)
    for _ in range(200):
        assert brake.begin("admin", "10.0.0.1") == 0.0
        brake.undone("admin", "10.0.0.1")
    for _ in range(200):
        assert brake.begin("admin", "10.0.0.1") == 0.0
        brake.passed("admin", "10.0.0.1")
    for _ in range(4):
        assert brake.begin("reader", "10.0.0.1") == 0.0
    brake.passed("reader", "10.0.0.1")
    assert [brake.begin("reader", "10.0.0.1") for _ in range(5)] == [0.0] * 5


def test_failures_are_forgotten_an_hour_after_the_last() -> None:
    clock = Clock(1000.0)
    brake = Brake(clock)
    for _ in range(5):
        brake.begin("admin", "10.0.0.1")
    clock.now += FORGOTTEN_S
    assert brake.begin("admin", "10.0.0.1") == 0.0
    assert brake.begin("admin", "10.0.0.1") > 1
    clock.now += FORGOTTEN_S + 1
    for _ in range(5):
        assert brake.begin("admin", "10.0.0.1") == 0.0


def test_it_remembers_so_many_and_forgets_no_common_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever tries a million names takes no memory and gets round no pause."""
    monkeypatch.setattr(brake, "KEYS_MAX", 300)
    clock = Clock(1000.0)
    tried = Brake(clock)
    for number in range(1000):
        clock.now += 0.5
        assert tried.begin(f"user-{number}" * 100, f"10.{number // 250}.{number % 250}.1") == 0.0
        assert len(tried._tries) <= 300
    assert tried.begin("another", "10.9.9.9") > 0  # too many together
    for number in range(1000):
        tried.passed(f"user-{number}", "10.0.0.1")
    assert len(tried._known) <= 300


def test_of_those_who_have_logged_in_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(brake, "KEYS_MAX", 3)
    clock = Clock(1000.0)
    tried = Brake(clock)
    for user in ("a", "b", "c", "a", "d"):
        tried.passed(user, "10.0.0.1")
    for number in range(150):
        clock.now += 0.5
        assert tried.begin(f"user-{number}", f"192.0.2.{number}") == 0.0
    assert [tried.begin(user, "10.0.0.1") > 0 for user in "abcd"] == [False, True, False, False]


def test_the_operator_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = Clock(1000.0)
    tried = Brake(clock)
    guesses(tried, clock, 100, [("ad\nmin", "192.0.2.1")])
    assert [record.getMessage() for record in caplog.records] == [
        "logins are slowed down after 5 failures of user 'ad\\nmin' from 192.0.2.1"
    ]


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::7", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("", ""),
        ("unix", "unix"),
    ],
)
def test_the_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network
