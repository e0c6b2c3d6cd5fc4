"""Sessions, tokens, and the names under which the console answers."""

from __future__ import annotations

from typing import cast

import pytest

from mqlake.console import security
from mqlake.console.ask import Cluster
from mqlake.console.security import (
    HEADERS,
    SESSION_IDLE_S,
    SESSIONS_MAX,
    Sessions,
    is_own_host,
    is_same_origin,
)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:8080",
        "LocalHost.:8080",
        "127.0.0.1:8080",
        "10.0.0.7",
        "[::1]:8080",
        "[2001:db8::7]",
        "desk.example",
        "desk.example:80",
        "DESK.example.",
    ],
)
def test_addresses_and_own_names_lead_here(host: str) -> None:
    assert is_own_host(host, ["Desk.Example"])


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8080",
        "",
        ":8080",
        "8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "localhost:8080:evil.example",
        "localhost:evil",
        "[::1.evil.example",
        "[localhost.evil]",
        "::1",
        "desk.example.evil",
    ],
)
def test_the_name_of_another_site_does_not(host: str) -> None:
    assert not is_own_host(host, ["desk.example"])


def test_an_origin_has_to_be_this_host() -> None:
    assert is_same_origin(None, "a:1") and is_same_origin("http://a:1", "a:1")
    assert is_same_origin("https://a", "a")
    for other in ("http://b:1", "http://a:2", "http://a", "http://a:1/", "a:1", "null", "", "//a:1"):
        assert not is_same_origin(other, "a:1"), other
    assert not is_same_origin("", "a:1")


def test_a_token_belongs_to_one_session_of_one_process() -> None:
    here, there = Sessions(), Sessions()
    first, second = here.new_id(), here.new_id()
    assert here.is_csrf_token(first, here.csrf_token(first))
    assert not here.is_csrf_token(second, here.csrf_token(first))
    assert not there.is_csrf_token(first, here.csrf_token(first))
    assert not here.is_csrf_token("", here.csrf_token(""))


def cluster(name: str) -> Cluster:
    return Cluster(cast("object", None), cast("object", None), name)  # type: ignore[arg-type]


def test_ids_are_long_and_each_its_own() -> None:
    ids = {Sessions.new_id() for _ in range(100)}
    assert len(ids) == 100 and all(len(each) >= 43 for each in ids)  # 256 bits
    tokens = {Sessions().csrf_token("one") for _ in range(10)}
    assert len(tokens) == 10 and all(len(each) == 64 for each in tokens)


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(security.time, "monotonic", lambda: self.now)


def test_a_session_ends_an_hour_after_it_was_used_last(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sessions = Clock(monkeypatch), Sessions()
    session, _ = sessions.log_in(cluster("a"))
    for _ in range(3):
        clock.now += SESSION_IDLE_S
        found = sessions.cluster(session)
        assert found is not None and found.user == "a"
    clock.now += SESSION_IDLE_S + 0.001
    assert sessions.cluster(session) is None
    assert sessions.cluster(session) is None  # asking is no use of it
    assert SESSION_IDLE_S == 3600


def test_a_login_ends_what_is_too_old_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, sessions = Clock(monkeypatch), Sessions()
    old, _ = sessions.log_in(cluster("old"))
    clock.now += 10
    young, ended = sessions.log_in(cluster("young"))
    assert ended == []
    clock.now += SESSION_IDLE_S - 10
    _, ended = sessions.log_in(cluster("third"))
    assert ended == []  # an hour, not more
    clock.now += 0.5
    _, ended = sessions.log_in(cluster("fourth"))
    assert [each.user for each in ended] == ["old"]
    assert sessions.cluster(old) is None and sessions.cluster(young) is not None


def test_there_are_as_many_sessions_as_may_be_and_those_longest_unused_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, sessions = Clock(monkeypatch), Sessions()
    ids = []
    for number in range(SESSIONS_MAX):
        clock.now += 1
        session, ended = sessions.log_in(cluster(str(number)))
        ids.append(session)
        assert ended == []
    clock.now += 1
    assert all(sessions.cluster(session) for session in reversed(ids))  # all at the same moment
    clock.now += 1
    assert sessions.cluster(ids[0]) is not None
    clock.now += 1
    more, ended = sessions.log_in(cluster("more"))
    assert [each.user for each in ended] == ["1"]
    assert [sessions.cluster(each) is None for each in ids] == [number == 1 for number in range(SESSIONS_MAX)]
    assert len(sessions.end_all()) == SESSIONS_MAX and sessions.cluster(more) is None
    assert sessions.end_all() == []


def test_who_logs_out_is_out_and_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    sessions = Sessions()
    first, _ = sessions.log_in(cluster("a"))
    second, _ = sessions.log_in(cluster("b"))
    gone = sessions.log_out(first)
    assert gone is not None and gone.user == "a"
    assert sessions.log_out(first) is None and sessions.cluster(first) is None
    assert sessions.cluster(second) is not None


def test_no_page_may_be_framed_or_load_what_is_not_ours() -> None:
    policy = dict(part.split(" ", 1) for part in HEADERS["Content-Security-Policy"].split("; "))
    assert policy.pop("default-src") == policy.pop("frame-ancestors") == policy.pop("base-uri") == "'none'"
    assert set(policy.values()) == {"'self'"}
    assert HEADERS["X-Frame-Options"] == "DENY" and HEADERS["X-Content-Type-Options"] == "nosniff"


def test_sessions_are_few_and_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions()
    now = 1000.0
    monkeypatch.setattr(security.time, "monotonic", lambda: now)
    first, _ = sessions.log_in(cluster("0"))
    for number in range(1, SESSIONS_MAX):
        now += 1
        sessions.log_in(cluster(str(number)))
    now += 1
    assert sessions.cluster(first) is not None  # used last, so the next oldest goes
    _, ended = sessions.log_in(cluster("more"))
    assert [each.user for each in ended] == ["1"]
    now += security.SESSION_IDLE_S + 1
    assert sessions.cluster(first) is None
    latest, ended = sessions.log_in(cluster("late"))
    assert len(ended) == SESSIONS_MAX
    assert sessions.log_out(latest) is not None and sessions.cluster(latest) is None


def test_sessions_of_age_make_room_and_no_other_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions()
    now = 1000.0
    monkeypatch.setattr(security.time, "monotonic", lambda: now)
    old = [sessions.log_in(cluster(f"old {number}"))[0] for number in range(3)]
    now += security.SESSION_IDLE_S
    used = [sessions.log_in(cluster(str(number)))[0] for number in range(SESSIONS_MAX - 3)]
    now += 1
    _, ended = sessions.log_in(cluster("more"))
    assert [each.user for each in ended] == ["old 0", "old 1", "old 2"]
    assert all(sessions.cluster(each) is not None for each in used)
    assert all(sessions.cluster(each) is None for each in old)
