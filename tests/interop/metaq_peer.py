"""The original MetaQ client and broker (1.4.6.2) as a peer: one JVM that does both at our request.

    with MetaqPeer(tmp_path) as java:
        java.send(zk, "test", [b"a", (b"b", "attribute")])
        with java.subscribed(zk, "test", "group") as consumer:
            consumer.take(2)

The peer (`tests/interop/metaq-java`, a Maven project) is compiled once per state of its source.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mqlake.metaq.config import ZKConfig
from mqlake.metaq.zookeeper.embedded import EmbeddedZookeeper
from mqlake.metaq.zookeeper.session import ZkSession
from tests.parts import needed

PROJECT = Path(__file__).parent / "metaq-java"
TARGET = PROJECT / "target"
JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx192m")
TAKE_MS = 120_000

Outgoing = bytes | tuple[bytes, str | None]


class MetaqPeerError(RuntimeError):
    """The peer cannot be built, has ended, or answered a request with an exception."""

    xa: int | None = None
    """XAException.errorCode, when it was one."""


class JavaMessage(NamedTuple):
    """A message as the Java client received it."""

    data: bytes
    attribute: str | None
    flag: int
    id: int
    partition: str | None


def build() -> str:
    """The class path of the peer, compiled first when its source has changed since the last time."""
    TARGET.mkdir(exist_ok=True)
    stamp, class_path = TARGET / "stamp", TARGET / "classpath"
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        digest = hashlib.sha256()
        for path in [PROJECT / "pom.xml", *sorted((PROJECT / "src").rglob("*"))]:
            if path.is_file():
                digest.update(path.read_bytes() + b"\0")
        source = digest.hexdigest()
        jars = class_path.read_text().split(os.pathsep) if class_path.exists() else []
        if not (stamp.exists() and stamp.read_text() == source and jars and all(map(os.path.exists, jars))):
            _maven()
            stamp.write_text(source)
            jars = class_path.read_text().split(os.pathsep)
    return os.pathsep.join([str(TARGET / "classes"), *jars])


def _maven() -> None:
    needed("javac")
    command = [needed("maven"), "-q", "-B", "process-classes"]
    for options in (["-o"], []):  # offline first: no registry is asked again for what is already here
        done = subprocess.run([*command, *options], cwd=PROJECT, text=True, capture_output=True, check=False)
        if done.returncode == 0:
            return
    raise MetaqPeerError(f"the MetaQ peer does not build:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")


class MetaqPeer:
    """One JVM. Requests are served one after the other; `zk` is always ZooKeeper's host:port."""

    def __init__(self, directory: Path, jvm: Sequence[str] = JVM) -> None:
        """Everything that the JVM writes of its own goes into `directory`."""
        directory.mkdir(parents=True, exist_ok=True)
        self.stderr = directory / "peer.stderr"
        options = [f"-Duser.home={directory}", f"-Djava.io.tmpdir={directory}", "-XX:-UsePerfData"]
        with self.stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                [
                    needed("java"),
                    *jvm,
                    *options,
                    "-cp",
                    build(),
                    "mqlake.metaq.Main",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                cwd=directory,
            )
        self._lock = threading.Lock()
        self._names = 0
        self._read()

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> MetaqPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise MetaqPeerError(f"the peer has ended: {self.stderr.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def request(self, op: str, **fields: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"op": op, **fields}) + "\n")
            self._process.stdin.flush()
            answer = self._read()
        if "error" in answer:
            error = MetaqPeerError(answer["error"])
            error.xa = answer.get("xa")
            raise error
        return answer["result"]

    # --- the client

    def send(
        self, zk: str, topic: str, messages: Sequence[Outgoing], transaction: str | None = None
    ) -> list[dict[str, Any]]:
        """success, partition, offset, error of each. `transaction`: commit or rollback them as one."""
        fields = {"zk": zk, "topic": topic, "messages": list(map(_outgoing, messages))}
        if transaction is not None:
            fields["transaction"] = transaction
        result: list[dict[str, Any]] = self.request("send", **fields)
        return result

    def xa(self, zk: str, topic: str, xid: int, until: str, messages: Sequence[Outgoing] = ()) -> Any:
        """An XA transaction of the messages; `until`: prepare, commit, onePhase, rollback, onlyCommit."""
        outgoing = list(map(_outgoing, messages))
        return self.request("xa", zk=zk, topic=topic, xid=xid, until=until, messages=outgoing)

    def xa_recover(self, zk: str, topic: str) -> list[str]:
        found: list[str] = self.request("xaRecover", zk=zk, topic=topic)
        return found

    @contextlib.contextmanager
    def subscribed(self, zk: str, topic: str, group: str) -> Iterator[JavaConsumer]:
        """A consumer with a session of its own."""
        self._names += 1
        name = f"consumer-{self._names}"
        self.request("subscribe", zk=zk, topic=topic, group=group, name=name, session=name)
        try:
            yield JavaConsumer(self, name)
        finally:
            self.request("unsubscribe", name=name)

    def browse(self, zk: str, topic: str) -> list[JavaMessage]:
        return list(map(_incoming, self.request("browse", zk=zk, topic=topic)))

    def stats(self, zk: str, item: str | None = None) -> str:
        text: str = self.request("stats", zk=zk, item=item)
        return text

    def disconnect(self, zk: str) -> None:
        """Shuts down producers and sessions."""
        self.request("disconnect", zk=zk)

    # --- the broker

    @contextlib.contextmanager
    def broker(self, ini: Path) -> Iterator[None]:
        """A broker of the configuration file."""
        self._names += 1
        name = f"broker-{self._names}"
        self.request("startBroker", ini=str(ini), name=name)
        try:
            yield
        finally:
            self.request("stopBroker", name=name)

    def open(self, ini: Path, *, fast_boot: bool = False) -> dict[str, Any]:
        """Opens the partitions and closes them: messages found, and seconds that it took to open."""
        done: dict[str, Any] = self.request("open", ini=str(ini), fastBoot=fast_boot)
        return done


class JavaConsumer:
    def __init__(self, peer: MetaqPeer, name: str) -> None:
        self._peer = peer
        self._name = name

    def take(self, count: int, timeout_ms: int = TAKE_MS) -> list[JavaMessage]:
        """The next `count` messages, fewer when the time is over."""
        found = self._peer.request("take", name=self._name, count=count, timeoutMs=timeout_ms)
        return list(map(_incoming, found))


def _outgoing(message: Outgoing) -> dict[str, Any]:
    data, attribute = message if isinstance(message, tuple) else (message, None)
    return {"data": base64.b64encode(data).decode(), "attribute": attribute}


def _incoming(fields: dict[str, Any]) -> JavaMessage:
    return JavaMessage(**{**fields, "data": base64.b64decode(fields["data"])})


def write_ini(
    path: Path, *, broker_id: int, port: int, data: Path, zk: str, topics: dict[str, dict[str, str]]
) -> Path:
    """A server.ini that both brokers take."""
    lines = [
        "[system]",
        f"brokerId={broker_id}",
        "numPartitions=1",
        f"serverPort={port}",
        "hostName=127.0.0.1",
        f"dataPath={data}",
        f"dataLogPath={data}",
        "unflushThreshold=0",
        "unflushInterval=10000",
        "maxSegmentSize=1024*1024*1024",
        "maxTransferSize=1024*1024",
        "getProcessThreadCount=4",
        "putProcessThreadCount=4",
        "[zookeeper]",
        f"zk.zkConnect={zk}",
        "zk.zkSessionTimeoutMs=20000",
        "zk.zkSyncTimeMs=100",
    ]
    for topic, values in topics.items():
        lines += [f"[topic={topic}]", *(f"{key}={value}" for key, value in values.items())]
    path.write_text("\n".join(lines) + "\n")
    return path


def chroot(zookeeper: EmbeddedZookeeper, name: str) -> str:
    """The address of a ZooKeeper of one's own: a directory of the shared one."""
    session = ZkSession(ZKConfig(zk_connect=zookeeper.connect_string))
    session.ensure_path(f"/{name}")
    session.close()
    return f"{zookeeper.connect_string}/{name}"
