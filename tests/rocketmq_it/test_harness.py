"""The harness itself, without RocketMQ's sources; and with them, if ROCKETMQ_SOURCE names a checkout, one class."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rocketmq_it import __main__ as harness
from tests.rocketmq_it import end_to_end
from tests.rocketmq_it.__main__ import LEAST_S, Outcome, Share, count, outcomes, unexpected
from tests.rocketmq_it.module import EDITS, SOURCES, SourceError, classes_with_tests, compiled

SOURCE = os.environ.get("ROCKETMQ_SOURCE")
VERSION = "<version>5.3.3</version>"


def checkout(directory: Path, **files: str) -> Path:
    (directory / "test").mkdir()
    (directory / "test/pom.xml").write_text(VERSION)
    for name, text in files.items():
        path = (
            directory
            / SOURCES[1]
            / "org/apache/rocketmq/test"
            / name.replace("__", "/").replace("_java", ".java")
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def test_what_is_no_checkout_of_the_version_is_told_with_what_to_do(tmp_path):
    with pytest.raises(
        SourceError, match=r"rocketmq-all-5\.3\.3 and give its path with --source or ROCKETMQ_SOURCE"
    ):
        classes_with_tests(tmp_path)
    checkout(tmp_path)
    (tmp_path / "test/pom.xml").write_text("<version>5.4.0</version>")
    with pytest.raises(SourceError, match="another version"):
        classes_with_tests(tmp_path)


def test_classes_with_tests_are_found(tmp_path):
    test = "import org.junit.Test;\nclass X {\n    @Test\n    void a() {}\n}"
    source = checkout(
        tmp_path,
        smoke__AIT_java=test,
        smoke__HelperIT_java="class Helper {}",
        smoke__BaseIT_java="abstract class B {\n    @Test\n}",
        dledger__DIT_java=test,
        container__CIT_java=test,
    )
    assert classes_with_tests(source) == ["org.apache.rocketmq.test.smoke.AIT"]


def test_a_source_that_an_edit_does_not_fit_is_refused(tmp_path, monkeypatch):
    """Else a test would quietly run against something else."""
    source = checkout(tmp_path, grpc__v2__LocalGrpcIT_java="createForLocalMode(another)")
    monkeypatch.setattr("tests.rocketmq_it.module._jars", lambda target: [])
    with pytest.raises(SourceError, match="expected once, found 0 times"):
        compiled(source, tmp_path / "target")
    (source / SOURCES[1] / "org/apache/rocketmq/test/grpc/v2/LocalGrpcIT.java").write_text(
        EDITS["grpc/v2/LocalGrpcIT.java"][0][0]
    )
    with pytest.raises(SourceError, match=r"has no .*GrpcBaseIT"):
        compiled(source, tmp_path / "target")


def test_outcomes_are_read_among_what_tests_print():
    printed = [
        "noise\n",
        "@ passed a\n",
        "@ failed b java.lang.X: y z\n",
        "@ skipped c not from outside: d\n",
    ]
    assert list(outcomes("AIT", iter(printed))) == [
        Outcome("AIT#a", "passed"),
        Outcome("AIT#b", "failed", "java.lang.X: y z"),
        Outcome("AIT#c", "skipped", "not from outside: d"),
    ]


def test_what_failed_or_was_not_run_fails_the_run_unless_it_is_known(tmp_path, monkeypatch):
    known = tmp_path / "known.toml"
    known.write_text('[known]\n"AIT#b" = "why"\n')
    monkeypatch.setattr(harness, "KNOWN", known)
    kinds = ("passed", "failed", "failed", "not run")
    found = [Outcome(f"AIT#{name}", kind) for name, kind in zip("abcd", kinds, strict=True)]
    assert unexpected(found) == found[2:]
    assert count(found) == "2 failed, 1 not run, 1 passed"


def test_the_time_is_shared_out(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(harness.time, "monotonic", lambda: now[0])
    share = Share(["a", "b", "c"], minutes=60, workers=1)
    assert share.next() == ("a", 1200.0)
    now[0] = 3400.0
    assert share.next() == ("b", LEAST_S)  # not less, as long as there is as much
    now[0] = 3600.0
    assert share.next() == ("c", 0.0)
    assert share.next() is None


def test_without_a_source_the_command_says_what_it_needs():
    command = [sys.executable, "-m", "tests.rocketmq_it"]
    environment = {key: value for key, value in os.environ.items() if key != "ROCKETMQ_SOURCE"}
    done = subprocess.run(command, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 2 and "a checkout of apache/rocketmq is needed" in done.stderr


@pytest.mark.java
@pytest.mark.skipif(not SOURCE, reason="ROCKETMQ_SOURCE names no checkout of RocketMQ")
def test_a_class_passes(tmp_path):
    command = [sys.executable, "-m", "tests.rocketmq_it", "TlsIT", "--json", str(tmp_path / "found.json")]
    subprocess.run(command, check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(each["test"], each["outcome"]) for each in found] == [
        ("TlsIT#testSendAndReceiveMessageOverTLS", "passed")
    ]


def test_a_report_of_junits_is_read(tmp_path):
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuite><testcase name="a()" classname="org.x.ATest"/>'
        '<testcase name="b()" classname="org.x.ATest"><failure message="no"/></testcase>'
        '<testcase name="c()" classname="org.x.ATest"><skipped/></testcase></testsuite>'
    )
    assert end_to_end.outcomes(report) == [
        Outcome("ATest#a()", "passed"),
        Outcome("ATest#b()", "failed", "no"),
        Outcome("ATest#c()", "ignored"),
    ]


def test_what_is_no_checkout_of_the_end_to_end_tests_is_told(tmp_path):
    with pytest.raises(SourceError, match=r"no checkout of apache/rocketmq-e2e"):
        end_to_end.class_path(tmp_path, tmp_path / "target")
