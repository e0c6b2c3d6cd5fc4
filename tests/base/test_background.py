"""Work in the background goes on after any error; and every loop of it runs its rounds so."""

from __future__ import annotations

import ast
import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqlake
from mqlake.base.background import KEEPS_FAILING, BackgroundTask, BackgroundWork, failing, repeat
from mqlake.errors import RemotingConnectError

logger = logging.getLogger("test.background")
SOURCE = Path(mqlake.__file__).parent


@pytest.mark.parametrize("error", [ValueError("x"), MemoryError(), ExceptionGroup("g", [OSError(5, "io")])])
def test_a_loop_goes_on_and_says_why_with_the_traceback(error: Exception, caplog) -> None:
    """Without it a loop ends at the first error that is not its own, and nobody knows."""

    async def main() -> list[int]:
        work, done = BackgroundWork("the work", logger, pause_s=0.0), []
        for number in range(3):
            async with work.round():
                if number == 1:
                    raise error
                done.append(number)
        return done

    assert asyncio.run(main()) == [0, 2]
    first, second = caplog.records
    assert first.levelno == logging.WARNING and first.exc_info[1] is error
    assert first.getMessage().startswith(f"the work: {type(error).__name__}")
    assert second.getMessage() == "the work: works again (after 1 failure)"


def test_what_repeats_is_said_once_a_minute_and_mqlakes_own_errors_need_no_traceback(caplog) -> None:
    work = BackgroundWork("the work", logger)
    for _ in range(100):
        with work.round():
            raise RemotingConnectError("h:1", "refused")
    (record,) = caplog.records
    assert (record.getMessage(), record.exc_info) == ("the work: h:1: refused; tried again", None)


def test_a_task_runs_between_start_and_stop_and_may_start_again() -> None:
    """Without it a broker that was a slave would not revive messages once it is master again."""

    async def main() -> list[str]:
        done, came = [], asyncio.Event()

        async def run() -> None:
            done.append("began")
            came.set()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                done.append("ended")

        task = BackgroundTask(run, "the task")
        await task.stop()
        for _ in range(2):
            assert not task.is_running
            task.start()
            assert task.is_running
            await came.wait()
            came.clear()
            await task.stop()
        await task.stop()
        return done

    assert asyncio.run(main()) == ["began", "ended"] * 2


def test_a_job_is_repeated_after_an_error_and_at_the_interval_of_the_moment(monkeypatch) -> None:
    """Without it the job would end at its first error, or a changed setting wait for the next start."""
    done: list[float] = []

    async def job() -> None:
        done.append(0.0)
        if len(done) == 4:
            raise asyncio.CancelledError
        raise ValueError("x")

    async def main() -> None:
        waited: list[float] = []

        async def sleep(seconds: float) -> None:
            waited.append(seconds)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await repeat("the job", logger, lambda: 10.0 + len(done), job)
        assert [each for each in waited if each >= 10] == [10.0, 11.0, 12.0, 13.0]

    asyncio.run(main())


def test_what_keeps_failing_is_known_until_it_works_or_its_loop_has_gone() -> None:
    """Without it health would say that all is well."""
    work = BackgroundWork("the work", logger)
    for number in range(KEEPS_FAILING):
        assert [each for each in failing() if "the work" in each] == [], number
        with work.round():
            raise ValueError("x")
    assert f"the work has failed {KEEPS_FAILING} times: ValueError: x" in failing()
    with work.round():
        pass
    assert not any("the work" in each for each in failing())
    for _ in range(KEEPS_FAILING):
        with work.round():
            raise ValueError("x")
    del work
    assert not any("the work" in each for each in failing())


@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt])
def test_what_ends_a_loop_still_ends_it(error: type[BaseException]) -> None:
    work = BackgroundWork("the work", logger)
    with pytest.raises(error), work.round():
        raise error


# --- every loop

ROOMS = ("adapters", "client", "broker", "proxy", "console", "metaq", "namesrv")
STARTERS = {"create_task", "ensure_future", "in_background", "Thread"}
NOT_LOOPS = {
    "broker/failover/driver.py:_run": "an error ends it on purpose: the broker starts again as a slave",
    "client/consume/push_consumer.py:_persist_move": "ends after a few tries, which are logged",
    "client/produce/accumulate.py:_send_some": "ends with what waits; an error reaches those that wait",
    "metaq/store/schedule.py:_run": "each job has a round of its own, in run_due",
}
"""Loops that are started and do not use BackgroundWork, and why."""


def _started(tree: ast.Module) -> set[str]:
    """The names of functions that a module starts in the background."""
    names = set()
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        function = call.func
        called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if called not in STARTERS:
            continue
        given = [*call.args[:1], *(word.value for word in call.keywords if word.arg == "target")]
        for one in given:
            target = one.func if isinstance(one, ast.Call) else one
            names.add(target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", ""))
    return names


def _uses_round(loop: ast.While) -> bool:
    return any(
        isinstance(item.context_expr, ast.Call)
        and isinstance(item.context_expr.func, ast.Attribute)
        and item.context_expr.func.attr == "round"
        for node in ast.walk(loop)
        if isinstance(node, ast.With | ast.AsyncWith)
        for item in node.items
    )


def _loops_without() -> Iterator[str]:
    for room in ROOMS:
        for path in sorted((SOURCE / room).rglob("*.py")):
            tree = ast.parse(path.read_text())
            started = _started(tree)
            for function in ast.walk(tree):
                if (
                    not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                    or function.name not in started
                ):
                    continue
                loops = [
                    node for node in function.body for node in ast.walk(node) if isinstance(node, ast.While)
                ]
                outer = [
                    loop
                    for loop in loops
                    if not any(loop in ast.walk(other) for other in loops if other is not loop)
                ]
                if not all(map(_uses_round, outer)):
                    yield f"{path.relative_to(SOURCE)}:{function.name}"


def test_every_loop_in_the_background_uses_it() -> None:
    """Without it the next loop that somebody writes ends at the first error again."""
    assert set(_loops_without()) == set(NOT_LOOPS)
