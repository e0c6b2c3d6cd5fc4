"""Sessions, tokens, and the names under which the console answers."""

from __future__ import annotations

from typing import cast

import pytest

from mqlake.console import security
from mqlake.console.ask import Cluster
from mqlake.console.security import SESSIONS_MAX, Sessions, is_own_host, is_same_origin


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:8080", "10.0.0.7", "[::1]:8080", "desk.example:80"]
)
def test_addresses_and_own_names_lead_here(host: str) -> None:
    assert is_own_host(host, ["desk.example"])


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_the_name_of_another_site_does_not(host: str) -> None:
    assert not is_own_host(host, ["desk.example"])


def test_an_origin_has_to_be_this_host() -> None:
    assert is_same_origin(None, "a:1") and is_same_origin("http://a:1", "a:1")
    assert not is_same_origin("http://b:1", "a:1") and not is_same_origin("null", "a:1")


def test_a_token_belongs_to_one_session_of_one_process() -> None:
    here, there = Sessions(), Sessions()
    first, second = here.new_id(), here.new_id()
    assert here.is_csrf_token(first, here.csrf_token(first))
    assert not here.is_csrf_token(second, here.csrf_token(first))
    assert not there.is_csrf_token(first, here.csrf_token(first))
    assert not here.is_csrf_token("", here.csrf_token(""))


def cluster(name: str) -> Cluster:
    return Cluster(cast("object", None), cast("object", None), name)  # type: ignore[arg-type]


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
