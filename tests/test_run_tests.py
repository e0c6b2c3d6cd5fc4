"""tools/run_tests.py: what fails is run once more, alone, and a run that fails is never called a good one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import run_tests

FLAKY = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range({count}))
def test_flaky(number):
    mark = pathlib.Path(__file__).with_name(f"ran-{{number}}")
    if not mark.exists():
        mark.touch()
        raise ValueError(f"a port is taken\\nnumber {{number}}")
"""
BROKEN = """
def test_broken():
    assert 1 == 2

def test_good():
    pass
"""
BROKEN_AT_THE_END = """
import pytest

@pytest.fixture
def thing():
    yield
    assert 1 == 2

def test_thing(thing):
    pass
"""
HANGS = """
import threading

def test_before():
    pass

def test_hangs():
    threading.Event().wait()

def test_good():
    pass
"""
CONFTEST = """
from tests.scheduling import KindScheduling

def pytest_xdist_make_scheduler(config, log):
    return KindScheduling(config, log)
"""
WORKERS = ("-n", "2", "--dist", "loadfile")
ONE_PROCESS = ("-p", "no:xdist")
"""Where it makes no difference: workers take seconds to start."""


@pytest.fixture
def tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory that make runs in: tests, and no conftest.py above them."""
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(run_tests.__file__).parents[1]))
    return tmp_path


def test_what_passes_alone_is_flaky_and_named(tests: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A run that failed by chance would reject a good change; one that says nothing would hide a bug."""
    (tests / "test_chance.py").write_text(FLAKY.format(count=run_tests.FLAKY_MAX))
    (tests / "test_sound.py").write_text("def test_sound():\n    pass\n")
    assert run_tests.main(WORKERS) == 0
    _, _, told = capfd.readouterr().out.partition("3 flaky")
    for number in range(3):
        assert f"test_chance.py::test_flaky[{number}]\n      ValueError: a port is taken" in told


def test_too_many_flaky_tests_fail_the_run(tests: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tests / "test_chance.py").write_text(FLAKY.format(count=run_tests.FLAKY_MAX + 1))
    assert run_tests.main(ONE_PROCESS) == run_tests.FAILED
    assert "more than 3 are flaky" in capfd.readouterr().out


def test_what_fails_again_fails_the_run(tests: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tests / "test_broken.py").write_text(BROKEN)
    (tests / "test_chance.py").write_text(FLAKY.format(count=1))
    assert run_tests.main(WORKERS) == run_tests.FAILED
    out = capfd.readouterr().out
    assert "2 failed: once more, alone" in out and "1 flaky" in out
    assert "test_broken.py::test_broken\n      " not in out.partition("1 flaky")[2]


def test_a_fixture_that_fails_at_the_end_is_a_failure(tests: Path) -> None:
    (tests / "test_end.py").write_text(BROKEN_AT_THE_END)
    assert run_tests.main(ONE_PROCESS) == run_tests.FAILED


def test_without_retry_the_first_failure_counts(tests: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tests / "test_chance.py").write_text(FLAKY.format(count=1))
    assert run_tests.main(["--no-retry", *ONE_PROCESS]) == run_tests.FAILED
    assert "once more" not in capfd.readouterr().out


@pytest.mark.parametrize("beside", ["", FLAKY.format(count=1)])
def test_a_file_that_cannot_be_collected_fails_the_run(tests: Path, beside: str) -> None:
    """Its tests are not among those that failed: a second run without it would pass."""
    (tests / "test_no_import.py").write_text("import no_such_module\n")
    (tests / "test_beside.py").write_text(beside)
    assert run_tests.main(WORKERS) not in (0, int(pytest.ExitCode.NO_TESTS_COLLECTED))


def test_a_test_that_hangs_shows_its_stack_and_the_run_goes_on(
    tests: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a scheduler that knows it, xdist starts the test that hangs again and again."""
    (tests / "conftest.py").write_text(CONFTEST)
    with (tests / "pytest.ini").open("a") as file:
        file.write("timeout = 4\ntimeout_method = thread\nfaulthandler_timeout = 2\n")
    (tests / "test_a_hanging.py").write_text(HANGS)
    for number in range(5):
        (tests / f"test_{number}.py").write_text(BROKEN.replace("1 == 2", "1 == 1"))
    assert run_tests.main(["--no-retry", *WORKERS]) == run_tests.FAILED
    out, err = capfd.readouterr()
    assert "in test_hangs\n" in err
    assert "crashed while running 'test_a_hanging.py::test_hangs'" in out
    assert "1 failed, 12 passed" in out


def test_a_run_ends_by_itself(
    tests: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tests / "test_hanging.py").write_text(HANGS)
    monkeypatch.setattr(run_tests, "LIMIT_S", 3)
    assert run_tests.main(WORKERS) == run_tests.INTERRUPTED
    assert "not over after 3 s: interrupted" in capfd.readouterr().out
