"""`python -m tests.rocketmq_it.end_to_end --source CHECKOUT [CLASS ...]`: RocketMQ's end-to-end tests of its Java
client for gRPC (apache/rocketmq-e2e, its module java/e2e) against `mqlake serve`, over TLS.

CHECKOUT/java/e2e ──▶ javac, with a Lombok that knows today's Java ──▶ classes ──▶ JUnit's console ──▶ a report in XML

The checkout is only read. All classes take 25 minutes, nearly all of it waiting. Exit status 1 if a test failed that
`KNOWN` does not name.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

from tests.interop.brokers import MqlakeBroker
from tests.parts import needed
from tests.rocketmq_it.__main__ import Outcome, count, tls_settings
from tests.rocketmq_it.module import SourceError, _run

POMS = ("pom.xml", "e2e/pom.xml", "e2e-v4/pom.xml", "e2e-spring/pom.xml")
LOMBOK = ("<version>1.18.8</version>", "<version>1.18.36</version>")
CONSOLE = "junit-platform-console-standalone-1.7.2.jar"
SETTINGS = {
    # the tests expect a missing topic to be an error, and filters by SQL
    "autoCreateTopicEnable": "false",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": str(64 << 20),
}
KNOWN = {
    "SimpleParamTest#test_waitAckException_reReceive_ack()": "looks for the code's name in the text of the answer, "
    "where RocketMQ 5.3.3 has `receipt handle is expired` as well",
}


def class_path(source: Path, target: Path) -> str:
    """Compiles the tests to `target`. Raises SourceError, and PartMissingError without Maven or a JDK."""
    project = source / "java" / "e2e"
    if not (project / "pom.xml").exists():
        raise SourceError(f"{source} is no checkout of apache/rocketmq-e2e (it has no java/e2e/pom.xml)")
    poms, classes, jars = target / "poms", target / "classes", target / "jars"
    for name in POMS:
        (poms / name).parent.mkdir(parents=True, exist_ok=True)
        (poms / name).write_text((source / "java" / name).read_text().replace(*LOMBOK))
    plugin = [needed("maven"), "-q", "-B", "-f", str(poms), "-pl", "e2e"]
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"
    _run([*plugin, f"{goal}:build-classpath", f"-Dmdep.outputFile={target / 'classpath'}"])
    artifact = "org.junit.platform:junit-platform-console-standalone:1.7.2"
    _run([*plugin, f"{goal}:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={jars}"])
    found = (target / "classpath").read_text()
    files = sorted(map(str, (project / "src").rglob("*.java")))
    javac = [needed("javac"), "-nowarn", "-proc:full", "-encoding", "UTF-8", "-d", str(classes), "-cp", found]
    _run([*javac, *files])
    (classes / "logback-test.xml").write_text("<configuration/>")  # else gigabytes of DEBUG
    return os.pathsep.join((str(classes), found))


def run(source: Path, target: Path, classes: Sequence[str], directory: Path) -> list[Outcome]:
    """The outcomes of all tests of the classes whose names have one of these parts; of all without any."""
    path = class_path(source, target)
    with MqlakeBroker(
        directory / "broker", {**SETTINGS, **tls_settings(directory)}, small=False, grpc=True
    ) as broker:
        command = [needed("java"), "-Xmx1g"]
        command += [f"-DnamesrvAddr={broker.namesrv}", f"-DendPoint={broker.grpc}", "-jar"]
        command += [str(target / "jars" / CONSOLE), "-cp", path, "--scan-classpath", str(target / "classes")]
        command += ["--include-classname", f".*({'|'.join(classes) or 'Test'}).*"]
        command += ["--reports-dir", str(directory), "--details", "none", "--disable-banner"]
        with (directory / "tests.log").open("w") as log:
            subprocess.run(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=source / "java" / "e2e", check=False
            )
    return outcomes(directory / "TEST-junit-jupiter.xml")


def outcomes(path: Path) -> list[Outcome]:
    """Of a report of JUnit's."""
    found = []
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.attrib['classname'].rpartition('.')[2]}#{case.attrib['name']}"
        bad = [each for each in case if each.tag in ("failure", "error")]
        ignored = case.find("skipped") is not None
        kind = "failed" if bad else "ignored" if ignored else "passed"
        found.append(Outcome(name, kind, bad[0].attrib.get("message", "") if bad else ""))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rocketmq_it.end_to_end", description=__doc__)
    parser.add_argument("classes", nargs="*", help="part of a class's name  [all classes]")
    parser.add_argument("--source", type=Path, required=True, help="a checkout of apache/rocketmq-e2e")
    parser.add_argument(
        "--directory", type=Path, help="where a new one is made for store and logs  [temporary]"
    )
    arguments = parser.parse_args()
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=arguments.directory)).resolve()
    try:
        target = Path(__file__).parent / "java" / "target" / "end-to-end"
        found = run(arguments.source.resolve(), target.resolve(), arguments.classes, directory)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 2
    bad = [outcome for outcome in found if outcome.outcome == "failed" and outcome.test not in KNOWN]
    for outcome in bad:
        print(f"unexpected: {outcome.test} {outcome.reason[:300]}")
    print(f"{count(found)}, {len(bad)} of them unexpected; logs in {directory}")
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
