"""What holds for all tests: nothing has a tight time limit, as a busy machine is slow; files are closed.

Compiled modules are kept whatever the environment says: hundreds of processes would each compile all they import.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS
from mqlake.store.files.mapped_file import MappedFile
from tests import costs, parts, spark_classes
from tests.waiting import PATIENCE_S

sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# a pytest that a test starts must not write this one's reports
os.environ.pop("PYTEST_ADDOPTS", None)

# a shell starts background jobs with Ctrl-C ignored, and so would be every process that a test starts
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# the same examples each time; with MQLAKE_CAMPAIGN set, new ones, and what they find becomes a test of its own
settings.register_profile(
    "mqlake",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="MQLAKE_CAMPAIGN" not in os.environ,
)
settings.load_profile("mqlake")
# RocketMQ's 3 s may be over before a busy machine has answered; a test that wants a limit gives it
DEFAULT_TIMEOUTS.request_s = DEFAULT_TIMEOUTS.transaction_s = PATIENCE_S

ARCHIVING = pytest.StashKey[subprocess.Popen[bytes] | None]()

LEFT_MAX = 16
"""Mapped files that the last test's fixtures may still hold while a module ends."""


@pytest.fixture(autouse=True, scope="module")
def _costs(request: pytest.FixtureRequest) -> Iterator[None]:
    """First of all, so that what other fixtures of the module start ends before it does."""
    with costs.of(request.node.nodeid):
        yield


@pytest.fixture(autouse=True, scope="module")
def _mapped_files_are_closed() -> Iterator[None]:
    """A module leaves no mapped file open: thousands of tests share a process and its limit of open files."""
    before = MappedFile.TOTAL_MAPPED_FILES
    yield
    if before < MappedFile.TOTAL_MAPPED_FILES:
        gc.collect()
    left = MappedFile.TOTAL_MAPPED_FILES - before
    assert left <= LEFT_MAX, (
        f"{left} mapped files are left open: close the stores and queues that the tests opened"
    )


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A directory in memory, for tests that make thousands of small files: a disk need not wait for them."""
    place = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(prefix="mqlake-", dir=place) as directory:
        yield Path(directory)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--quick", action="store_true", help="only files that take little time, without Spark and RocketMQ"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if not (config.option.quick and collection_path.suffix == ".py"):
        return None
    from tests import scheduling

    file = collection_path.relative_to(config.rootpath).as_posix()
    return None if scheduling.is_quick(file) else True


def pytest_configure(config: pytest.Config) -> None:
    spark_classes.use()
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        config.stash[ARCHIVING] = spark_classes.start_archiving()


def pytest_sessionstart(session: pytest.Session) -> None:
    """pytest's log handlers keep their format.

    pytest adds them to each logger that does not propagate, and from the first error of a query on there is one of
    PySpark's, whose addHandler() makes any handler write JSON: `caplog.text` of all later tests would depend on it.
    """
    logging_plugin = session.config.pluginmanager.get_plugin("logging-plugin")
    assert logging_plugin is not None
    for handler in (logging_plugin.caplog_handler, logging_plugin.report_handler):
        handler.setFormatter = lambda _: None


def pytest_unconfigure(config: pytest.Config) -> None:
    archiving = config.stash.get(ARCHIVING, None)
    if archiving is not None and archiving.poll() is None:
        os.killpg(archiving.pid, signal.SIGTERM)
        archiving.wait()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if not parts.are_required() and (trouble := parts.of_markers(mark.name for mark in item.iter_markers())):
        pytest.skip(parts.reason(trouble))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails because a part is missing is skipped, unless all parts are asked for."""
    report = yield
    if report.failed and call.excinfo is not None and not parts.are_required():
        trouble = parts.missing_in(call.excinfo.value)
        if trouble is not None:
            report.outcome = "skipped"
            path, line, _ = item.location
            report.longrepr = (path, (line or 0) + 1, f"Skipped: {parts.reason(trouble)}")
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skipped = terminalreporter.getreports("skipped")
    lines = parts.summary(report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple))
    for title, found in (
        ("not run, as a part is missing", lines),
        ("what the files cost, in seconds", costs.report()),
    ):
        if found:
            terminalreporter.section(title)
            for line in found:
                terminalreporter.line(line)


def _import_own_share(workerid: str, workercount: int, **_: object) -> None:
    """In a fresh checkout pytest compiles each test file at its first import: each worker begins with others.

    An import that fails is reported by the collection.
    """
    root = Path(__file__).parents[1]
    modules = sorted(root.glob("tests/**/test_*.py"))[int(workerid[2:]) :: workercount]
    for module in modules:
        with contextlib.suppress(Exception, pytest.skip.Exception):
            importlib.import_module(".".join(module.relative_to(root).with_suffix("").parts))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """What is collected stays to the end: it is not looked at for garbage, neither now nor in any later round."""
    gc.disable()
    try:
        if hasattr(session.config, "workerinput"):
            _import_own_share(**session.config.workerinput)
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests import scheduling

    return scheduling.KindScheduling(config, log) if config.option.dist == "loadfile" else None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput"):
        from tests import scheduling

        scheduling.in_order(items, lambda item: item.nodeid.partition("::")[0])
