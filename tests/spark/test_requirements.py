from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mqlake.spark
from mqlake.errors import MissingPartError
from mqlake.spark import requirements as parts


def test_java_is_looked_for_where_spark_does(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        MissingPartError,
        match=r"^Java 17 or newer .*no java on the PATH.*openjdk-21-jdk-headless \(where there is none, openjdk-17",
    ):
        parts.require_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingPartError, match="without bin/java"):
        parts.require_java()


def test_java_may_be_too_old(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019-01-15' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(MissingPartError, match=r'Java 17 or newer is missing.*version "11'):
        parts.require_java()


def test_a_pyspark_without_limits_for_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    parts.require_stream_readers()
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPartError, match=r"PySpark 4\.2 or newer is missing \(streams need it\)"):
        parts.require_stream_readers()


def test_python_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        MissingPartError, match=r"pyspark is missing; install it with: pip install 'mqlake\[spark\]'"
    ):
        mqlake.spark.session()


def session_on(python: str, *includes: str) -> Any:
    return SimpleNamespace(_sc=SimpleNamespace(pythonExec=python, _python_includes=list(includes)))


def test_workers_without_mqlake(tmp_path: Path) -> None:
    """A Python that has nothing but its own modules: of an environment made for the test."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(MissingPartError) as failed:
        parts.require_in_workers(session_on(str(python)))
    assert f"{python} -m pip install 'mqlake[spark]'" in str(failed.value)
    assert "No module named 'mqlake'" in str(failed.value) and "\n" not in str(failed.value)
    with pytest.raises(MissingPartError, match="No such file"):
        parts.require_in_workers(session_on(str(tmp_path / "none")))
    parts.require_in_workers(session_on(str(python), "mqlake.zip"))  # sent along
    parts.require_in_workers(session_on(sys.executable))
    parts.require_in_workers(SimpleNamespace(_sc=None))  # type: ignore[arg-type]
    with (
        pytest.raises(MissingPartError, match="Spark's workers, which run on"),
        parts.found_in_workers(session_on(str(python))),
    ):
        raise RuntimeError("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: commitlog.")
    with pytest.raises(RuntimeError, match="another"), parts.found_in_workers(session_on(str(python))):
        raise RuntimeError("another error")
