"""What is tried again while a cluster is away, and what is not. The adapters' own tests do it with real clusters."""

from __future__ import annotations

import asyncio

import pytest

from mqlake.adapters import patience
from mqlake.adapters.patience import until_there
from mqlake.errors import (
    CertificateError,
    MqlakeError,
    NoMasterError,
    NoNameServerError,
    RemotingConnectError,
    ResponseError,
    TopicNotFoundError,
)

AWAY = NoNameServerError([("a:9876", "refused")])


class Work:
    """Fails as told, in turn; then it is done."""

    def __init__(self, *failures: MqlakeError) -> None:
        self.failures, self.said = list(failures), list[str]()

    async def __call__(self) -> str:
        if self.failures:
            raise self.failures.pop(0)
        return "done"

    def until_there(self, timeout_s: float | None) -> str:
        return asyncio.run(until_there(self, timeout_s, self.said.append))


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "FIRST_WAIT_S", 0.001)
    monkeypatch.setattr(patience, "LONGEST_WAIT_S", 0.002)


@pytest.mark.parametrize("timeout_s", [60.0, None])
def test_what_is_away_is_tried_again_and_said(timeout_s: float | None) -> None:
    work = Work(AWAY, NoMasterError(["a:9876"]), RemotingConnectError("a:1", "refused"), AWAY)
    assert work.until_there(timeout_s) == "done"
    assert [line.partition(":")[0] for line in work.said] == [
        "no name server answers",
        "no master is registered at a",
        "a",
        "no name server answers",
    ]


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    work = Work(*[AWAY] * 10_000)
    with pytest.raises(NoNameServerError):
        work.until_there(0.05)
    assert 1 < len(work.said) < 9_999
    once = Work(AWAY)
    with pytest.raises(NoNameServerError):
        once.until_there(0.0)
    assert once.said == []


@pytest.mark.parametrize(
    "error",
    [
        ResponseError(16, "no permission"),
        TopicNotFoundError("T", "no broker has it"),
        CertificateError("a:1", "?"),
    ],
)
def test_what_waiting_does_not_mend_is_raised_at_once(error: MqlakeError) -> None:
    work = Work(error)
    with pytest.raises(type(error)):
        work.until_there(None)
    assert work.said == []
