"""The sources of RocketMQ's module `test`, compiled for brokers that run outside.

checkout ──▶ test/src/main, test/src/test, without the classes that need brokers of their own kind
                 │ EDITS
java/replaced ───┴──▶ javac ──▶ classes, first on the class path, before RocketMQ's jars
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.interop.java_peer import ROCKETMQ_VERSION
from tests.parts import needed

JAVA = Path(__file__).parent / "java"
MAIN = "mqlake.it.Main"
SOURCES = ("test/src/main/java", "test/src/test/java")
RESOURCES = "test/src/test/resources"
OTHER_BROKERS = ("autoswitchrole", "container", "dledger", "lmq", "schema")
"""Folders whose tests need controllers, containers, DLedger or light queues, or look at RocketMQ's own classes."""

Edits = dict[str, tuple[tuple[str, str], ...]]
_LOCAL = "this instanceof LocalGrpcIT"
EDITS: Edits = {
    # LocalGrpcIT is about the endpoint inside the broker: that is mqlake's. ClusterGrpcIT keeps RocketMQ's own proxy.
    "grpc/v2/LocalGrpcIT.java": (("createForLocalMode(brokerController1)", "createForClusterMode()"),),
    "grpc/v2/GrpcBaseIT.java": (
        ("NettyServerBuilder.forPort(port)", f"NettyServerBuilder.forPort({_LOCAL} ? 0 : port)"),
        (
            "this.port = server.getPort();",
            f'this.port = {_LOCAL} ? Integer.getInteger("mqlake.grpc") : server.getPort();',
        ),
        # the tests set RocketMQ's proxy to less than its defaults, which are fixed here: 10 s for a message to be
        # invisible, 5 s for a poll
        (".setSeconds(3)", f".setSeconds({_LOCAL} ? 10 : 3)"),
        (
            "stub.withDeadlineAfter(timeSeconds,",
            f"stub.withDeadlineAfter({_LOCAL} ? Math.max(timeSeconds, 6) : timeSeconds,",
        ),
    ),
    # hooks of the servers sit in the clients
    "client/rmq/RMQNormalConsumer.java": (
        (
            "new DefaultMQPushConsumer(consumerGroup)",
            "new DefaultMQPushConsumer(consumerGroup, org.apache.rocketmq.broker.BrokerController.hooks())",
        ),
    ),
}
"""File below org/apache/rocketmq/test → what is replaced in it, each at exactly one place."""


class SourceError(Exception):
    """There is no such checkout, or it does not compile; the text says what to do."""


def compiled(source: Path, target: Path, *, outside: bool = True) -> list[str]:
    """The class path: what is made below `target`, then RocketMQ's jars.

    `outside`: for brokers in other processes; otherwise the module as it is, which starts RocketMQ's own.

    Raises SourceError, and PartMissingError without Maven or a JDK.
    """
    _check(source)
    target.mkdir(parents=True, exist_ok=True)
    with (target / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = _jars(target)
        # a folder for each state: a run that is under way keeps its classes
        classes = target / f"{'outside' if outside else 'inside'}-{_state(source)[:16]}"
        if not (classes / "complete").exists():
            shutil.rmtree(classes, ignore_errors=True)
            _compile(_files(source, classes / "edited", EDITS if outside else {}, outside), classes, jars)
            if (source / RESOURCES).exists():
                shutil.copytree(source / RESOURCES, classes, dirs_exist_ok=True)
            (classes / "complete").touch()
    return [str(classes), *jars]


def classes_with_tests(source: Path) -> list[str]:
    """The full names of those with tests, in order. Raises SourceError."""
    _check(source)
    root = source / "test/src/test/java"
    return sorted(
        ".".join(path.relative_to(root).with_suffix("").parts)
        for path in _chosen(root)
        if path.stem.endswith(("IT", "Test")) and _has_tests(path)
    )


def _has_tests(path: Path) -> bool:
    text = path.read_text()
    return bool(re.search(r"^\s*@Test", text, re.MULTILINE)) and not re.search(r"\babstract class\b", text)


def _check(source: Path) -> None:
    pom = source / "test" / "pom.xml"
    tag = f"rocketmq-all-{ROCKETMQ_VERSION}"
    if not pom.exists():
        raise SourceError(
            f"{source} is no checkout of apache/rocketmq (it has no test/pom.xml). The module is not in Maven Central: "
            f"clone the repository at the tag {tag} and give its path with --source or ROCKETMQ_SOURCE"
        )
    if f"<version>{ROCKETMQ_VERSION}</version>" not in pom.read_text():
        raise SourceError(f"{source} is of another version than {ROCKETMQ_VERSION}: check out the tag {tag}")


def _state(source: Path) -> str:
    digest = hashlib.sha256(f"{source.resolve()}".encode())
    for path in [Path(__file__), *sorted(JAVA.rglob("*.java"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _jars(target: Path) -> list[str]:
    path = target / "classpath"
    jars = path.read_text().split(os.pathsep) if path.exists() else []
    if not jars or not all(map(os.path.exists, jars)):
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
        _run([needed("maven"), "-q", "-B", goal, f"-Dmdep.outputFile={path.resolve()}"])
        jars = path.read_text().split(os.pathsep)
    return jars


def _chosen(root: Path) -> list[Path]:
    return [path for path in root.rglob("*.java") if not set(OTHER_BROKERS) & set(path.parts)]


def _files(source: Path, edited: Path, edits: Edits, outside: bool) -> list[Path]:
    files = list((JAVA / "runner").rglob("*.java"))
    if outside:
        files += (JAVA / "replaced").rglob("*.java")
    missing = set(edits)
    for root in (source / folder for folder in SOURCES):
        for path in _chosen(root):
            name = str(path.relative_to(root)).removeprefix("org/apache/rocketmq/test/")
            if name in edits:
                missing.discard(name)
                path = _edited(path, edited / name, edits[name])
            files.append(path)
    if missing:
        raise SourceError(f"{source} has no {', '.join(sorted(missing))}")
    return files


def _edited(path: Path, copy: Path, edits: tuple[tuple[str, str], ...]) -> Path:
    text = path.read_text()
    for old, new in edits:
        if text.count(old) != 1:
            raise SourceError(f"{path}: expected once, found {text.count(old)} times: {old!r}")
        text = text.replace(old, new)
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(text)
    return copy


def _compile(files: list[Path], classes: Path, jars: list[str]) -> None:
    classes.mkdir(parents=True, exist_ok=True)
    listed = classes / "sources"
    listed.write_text("".join(f'"{path.resolve()}"\n' for path in files))
    command = [needed("javac"), "-nowarn", "-encoding", "UTF-8", "-d", str(classes)]
    _run([*command, "-cp", os.pathsep.join(jars), f"@{listed}"])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, cwd=JAVA, text=True, capture_output=True, check=False)
    if done.returncode:
        raise SourceError(f"{' '.join(command[:2])} failed:\n{done.stdout[-4000:]}{done.stderr[-8000:]}")
