"""audit: counts, few lines, and no secrets in them."""

from __future__ import annotations

import logging

import pytest

from mqlake.auth.audit import Audit, shown


def test_refusals_are_counted_and_logged_with_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    audit = Audit(3, lambda: now)
    with caplog.at_level(logging.WARNING):
        many = [audit.note("authentication", "user alice", "1.1.1.1", "PULL_MESSAGE", "no") for _ in range(5)]
        assert many == [False, False, False, True, True]
        assert not audit.note("authentication", "user alice", "2.2.2.2", "PULL_MESSAGE", "no")
        now += 11
        assert not audit.note("authentication", "user alice", "1.1.1.1", "PULL_MESSAGE", "no")
    assert audit.refused == {("authentication", "PULL_MESSAGE"): 7}
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "access refused: authentication, user alice, 1.1.1.1, PULL_MESSAGE: no",
        "access refused: authentication, user alice, 2.2.2.2, PULL_MESSAGE: no",
        "access refused: authentication, user alice, 1.1.1.1, PULL_MESSAGE: no (4 more since the last line)",
    ]


def test_memory_is_bounded() -> None:
    audit = Audit(10**9, lambda: 1.0)
    for number in range(3000):
        audit.note("authorization", f"user {number}", "1.1.1.1", "X", "no")
    assert len(audit._lines) <= 1000


def test_a_name_that_nobody_has_may_be_a_secret() -> None:
    assert shown("alice", known=True) == "user alice"
    assert shown(None, known=False) == "no user"
    text = shown("hunter2hunter2", known=False)
    assert "hunter2" not in text and "14 characters" in text
