"""The Java store (RocketMQ 5.3.3) as a peer: one JVM that writes and reads stores at our request.

    with JavaStore(tmp_path) as java:
        results = java.write(root, SMALL_FILES, [put("T", b"body", tags="a"), put("T", seed=1, size=500)])
        contents = java.read(root, SMALL_FILES)
        contents.queues["T", 0].messages[0]["body"]

The peer (``tests/interop/java``, a Maven project) is compiled once per state of its source and started
once per ``JavaStore``; it serves JSON lines on its stdin and stdout. A store that must be left as a crash
leaves it (``halt=True``) is written by a JVM of its own, which halts.

Operations are plain dicts with RocketMQ's names (see ``Operations.java``); ``put``, ``batch`` and ``TICK``
make them. Bodies travel as base64 and are given back as bytes.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import ipaddress
import json
import math
import os
import subprocess
import tempfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.parts import needed
from tests.ports import free_ports
from tests.waiting import PATIENCE_S

PROJECT = Path(__file__).parent / "java"
TARGET = PROJECT / "target"
ROCKETMQ_VERSION = "5.3.3"
LATER_VERSION = "5.5.1"
"""Of the broker and the store. Of the rest, 5.5.0 is the last that was published."""
ACL1_VERSION = "5.3.2"
"""The last broker with ACL 1.0 (plain_acl.yml)."""
TOOLS_VERSIONS = {LATER_VERSION: "5.5.0", ACL1_VERSION: "5.3.3"}
"""Of tools, name server and client, where a broker's own were not published."""

Json = dict[str, Any]
Config = Mapping[str, Any]

# Files small enough that every kind of file rolls after a few messages.
SMALL_FILES: Json = {
    "mappedFileSizeCommitLog": 64 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 100,
    "mappedFileSizeConsumeQueueExt": 4 * 1024,
    "mapperFileSizeBatchConsumeQueue": 46 * 20,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "maxMessageSize": 32 * 1024,
}

# What the peer sets unless a test says otherwise: no compaction threads, no cleaning by how full the disk is.
DEFAULTS: Json = {"enableCompaction": False, "diskMaxUsedSpaceRatio": 95, "cleanFileForciblyEnable": False}

# The JVM of tests lives briefly and beside others.
TEST_JVM = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-Xmx512m",
    # The buffers of a closed store are then given back by the collector.
    "-Dio.netty.maxDirectMemory=0",
    # Else each server makes itself an RSA key, two seconds of processor time.
    "-Dtls.server.mode=disabled",
    # On a busy machine RocketMQ's own 3 s are over before a connection is made.
    "-Dcom.rocketmq.remoting.client.connect.timeout=60000",
)
ARCHIVE = "classes.jsa"
QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")
"""A JVM that cannot use the archive does without it."""
# In a bench it compiles all it can, and has what a broker's start script gives it, on a smaller heap.
BENCH_JVM = ("-Xms2g", "-Xmx2g", "-XX:+AlwaysPreTouch", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=2g")


class JavaPeerError(RuntimeError):
    """The peer cannot be built, has ended, or answered a request with an exception."""


# --- build


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in [PROJECT / "pom.xml", *sorted((PROJECT / "src").rglob("*"))]:
        if path.is_file():
            digest.update(str(path.relative_to(PROJECT)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def class_options(version: str = ROCKETMQ_VERSION) -> list[str]:
    """For a JVM of the peer's or of RocketMQ's own: the class path, and the archive of its classes, parsed before.

    What `build` raises.
    """
    path = build(version)
    archive = TARGET / ARCHIVE
    if version != ROCKETMQ_VERSION or not archive.stat().st_size:
        return ["-cp", path]
    return [f"-XX:SharedArchiveFile={archive}", *QUIET, "-cp", path]


def build(version: str = ROCKETMQ_VERSION) -> str:
    """The class path of the peer, compiled first when its source has changed since the last time; with the classes of
    another version of RocketMQ if so asked.

    Raises PartMissingError without Maven or a JDK, JavaPeerError when the build fails.
    """
    if version != ROCKETMQ_VERSION:
        return os.pathsep.join([str(TARGET / "classes"), *_jars_of(version)])
    TARGET.mkdir(exist_ok=True)
    stamp, class_path, jar = TARGET / "stamp", TARGET / "classpath", TARGET / "peer.jar"
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        source = _source_hash()
        jars = class_path.read_text().split(os.pathsep) if class_path.exists() else []
        made = (stamp, jar, TARGET / ARCHIVE)
        current = jars and all(map(os.path.exists, map(str, [*made, *jars]))) and stamp.read_text() == source
        if not current:
            stamp.unlink(missing_ok=True)  # a build that fails leaves half of the classes
            _maven()
            jars = class_path.read_text().split(os.pathsep)
            _pack(TARGET / "classes", jar)
            _archive(os.pathsep.join([str(jar), *jars]))
            stamp.write_text(source)
    return os.pathsep.join([str(jar), *jars])


def _pack(classes: Path, jar: Path) -> None:
    with zipfile.ZipFile(jar, "w") as file:
        for path in sorted(classes.rglob("*")):
            file.write(path, path.relative_to(classes))


def _archive(class_path: str) -> None:
    """Has a name server, a broker and clients write down the classes that they have loaded: half of a JVM's start is
    to find and check them.

    Without the archive, an empty file, all works as well.
    """
    archive = TARGET / ARCHIVE
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as directory:
        port = free_ports(4) + 2
        namesrv, broker = Path(directory, "namesrv.conf"), Path(directory, "broker.conf")
        namesrv.write_text(f"listenPort={port + 1}\nkvConfigPath={directory}/kvConfig.json\n")
        broker.write_text(
            f"listenPort={port}\nhaListenPort={free_ports(1)}\nbrokerIP1=127.0.0.1\nnamesrvAddr=127.0.0.1:{port + 1}\n"
            f"timerWheelEnable=false\nstorePathRootDir={directory}\nstorePathCommitLog={directory}/commitlog\n"
            f"mappedFileSizeCommitLog={1 << 20}\nmappedFileSizeConsumeQueue=6000\n"
        )
        command = ["java", *TEST_JVM, f"-XX:ArchiveClassesAtExit={archive}", *QUIET, "-cp", class_path]
        command += [f"-Duser.home={directory}", f"-Djava.io.tmpdir={directory}"]
        command += ["mqlake.archive.Main", str(namesrv), str(broker)]
        pipe, environment = subprocess.PIPE, {**os.environ, "ROCKETMQ_HOME": directory}
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True, env=environment
        ) as java:
            giving_up = threading.Timer(PATIENCE_S, java.kill)
            giving_up.start()
            _send_and_consume(java, f"127.0.0.1:{port + 1}")
            java.terminate()  # it writes the archive as it ends
            java.wait()
            giving_up.cancel()
    archive.touch()


def _send_and_consume(java: subprocess.Popen[str], namesrv: str) -> None:
    """What most tests ask of Java's clients, or as far as it comes."""
    assert java.stdin is not None and java.stdout is not None
    for request in (
        {"do": "topic.create", "topic": "T", "queues": 1},
        {"do": "producer.start", "name": "producer"},
        {
            "do": "producer.send",
            "name": "producer",
            "topic": "T",
            "how": "sync",
            "messages": [{"body": "eA=="}],
        },
        {"do": "push.start", "name": "consumer", "group": "G", "topic": "T", "from": "FIRST"},
        {"do": "push.take", "name": "consumer", "count": 1, "timeoutMillis": int(PATIENCE_S * 1000)},
    ):
        with contextlib.suppress(BrokenPipeError):
            java.stdin.write(json.dumps({**request, "namesrv": namesrv}) + "\n")
            java.stdin.flush()
        if not any(line.startswith("{") for line in java.stdout):
            return


def _jars_of(version: str) -> list[str]:
    build()
    class_path = TARGET / f"classpath-{version}"
    with (TARGET / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        jars = class_path.read_text().split(os.pathsep) if class_path.exists() else []
        if not jars or not all(map(os.path.exists, jars)):
            goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:build-classpath"
            tools = TOOLS_VERSIONS[version]
            _maven(
                goal,
                f"-Dmdep.outputFile={class_path}",
                f"-Drocketmq.version={version}",
                f"-Drocketmq.tools.version={tools}",
                f"-Drocketmq.acl.version={version if version == ACL1_VERSION else tools}",
            )
            jars = class_path.read_text().split(os.pathsep)
    return jars


def _maven(*goals: str) -> None:
    needed("javac")
    command = [needed("maven"), "-q", "-B", *(goals or ("process-classes",))]
    # Offline first: no registry is asked again for what is already here.
    for options in (["-o"], []):
        done = subprocess.run([*command, *options], cwd=PROJECT, text=True, capture_output=True, check=False)
        if done.returncode == 0:
            return
    raise JavaPeerError(f"the Java peer does not build:\n{done.stdout[-4000:]}{done.stderr[-2000:]}")


# --- operations


def seeded_body(seed: int | str, size: int) -> bytes:
    """The body that the peer makes of ``seed`` and ``size``."""
    blocks = (hashlib.sha256(f"{seed}:{n}".encode()).digest() for n in range((size + 31) // 32))
    return b"".join(blocks)[:size]


def put(topic: str, body: bytes | None = None, *, queue_id: int = 0, **fields: Any) -> Json:
    """One message. ``fields`` by RocketMQ's names: tags, keys, uniqKey, delayLevel, waitStoreMsgOk,
    properties, flag, sysFlag, bornTimestamp, bornHost, storeHost (a host is ``(ip, port)``), reconsumeTimes,
    preparedTransactionOffset; seed and size in place of a body."""
    return {"op": "put", "topic": topic, "queueId": queue_id, **_body(body), **fields}


def item(body: bytes | None = None, **fields: Any) -> Json:
    """One message of a batch: flag, tags, keys, uniqKey, properties; seed and size in place of a body."""
    return {**_body(body), **fields}


def batch(
    topic: str, messages: Sequence[Json], *, queue_id: int = 0, inner: bool = False, **fields: Any
) -> Json:
    """A batch of items, with the fields of ``put``; ``inner``: one record (queue.type is BatchCQ)."""
    items = list(messages)
    return {"op": "batch", "topic": topic, "queueId": queue_id, "messages": items, "inner": inner, **fields}


# Everything before is dispatched, everything after is of a later millisecond.
TICK: Json = {"op": "tick"}


def _body(body: bytes | None) -> Json:
    return {} if body is None else {"body": base64.b64encode(body).decode()}


# --- queries


def by_key(topic: str, key: str, *, max_count: int = 64, begin: int = 0, end: int = 2**63 - 1) -> Json:
    """→ physicalOffsets, indexLastUpdateTimestamp, indexLastUpdatePhyoffset."""
    return {"kind": "key", "topic": topic, "key": key, "max": max_count, "begin": begin, "end": end}


def by_time(topic: str, queue_id: int, timestamp: int, boundary: str = "LOWER") -> Json:
    """→ offset (of the queue)."""
    return {"kind": "time", "topic": topic, "queueId": queue_id, "timestamp": timestamp, "boundary": boundary}


def get(
    topic: str, queue_id: int, offset: int, *, max_count: int = 32, subscription: str | None = None
) -> Json:
    """→ status, nextBeginOffset, minOffset, maxOffset, physicalOffsets."""
    query = {"kind": "get", "topic": topic, "queueId": queue_id, "offset": offset, "max": max_count}
    return query if subscription is None else {**query, "subscription": subscription}


def by_physical_offset(offset: int) -> Json:
    """→ message, when there is one."""
    return {"kind": "physical", "offset": offset}


# --- contents


@dataclass
class JavaQueue:
    """One consume queue as Java reads it: ``units`` as iterated, ``messages`` as getMessage finds them."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    max_physic_offset: int
    type: str
    units: list[Json] = field(default_factory=list)
    messages: list[Json] = field(default_factory=list)


@dataclass
class JavaStoreContents:
    """All that Java finds in a store. A record or message is a dict by RocketMQ's names, the body as bytes,
    hosts as ``(ip, port)`` with the ip as Python's ipaddress writes it."""

    info: Json
    records: list[Json]
    queues: dict[tuple[str, int], JavaQueue]
    answers: list[Json]

    @property
    def min_physical_offset(self) -> int:
        return int(self.info["minPhysicalOffset"])

    @property
    def max_physical_offset(self) -> int:
        return int(self.info["maxPhysicalOffset"])


def _message(line: Json) -> Json:
    message = {key: value for key, value in line.items() if key != "kind"}
    message["body"] = base64.b64decode(message["body"])
    for host in ("bornHost", "storeHost"):
        ip, port = message[host]
        message[host] = (str(ipaddress.ip_address(ip)), port)
    return message


def _answer(line: Json) -> Json:
    return {"message": _message(line["message"])} if "message" in line else line


# --- processes


class JavaPeer:
    """One JVM. Requests are served one after the other; any thread may send them."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        jvm: Sequence[str] = TEST_JVM,
        log: str = "WARN",
        version: str = ROCKETMQ_VERSION,
    ) -> None:
        """Everything that the JVM writes of its own goes into ``directory``: its log (``log``: the level),
        its stderr, its temporary files and its home."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "peer.log"
        self.stderr = directory / "peer.stderr"
        command = [
            needed("java"),
            *jvm,
            f"-Duser.home={directory}",
            f"-Djava.io.tmpdir={directory}",
            f"-Dmqlake.peer.log={self.log}",
            f"-Dmqlake.peer.log.level={log}",
            "-XX:-UsePerfData",
            *class_options(version),
            "mqlake.peer.Main",
        ]
        with self.stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, do: str, **fields: Any) -> Json:
        """Sends a request that is answered by one line, and gives that line.

        Raises JavaPeerError when the request fails in Java or the JVM has ended."""
        lines, last = self.lines(do, **fields)
        assert not lines, f"{do} answers {len(lines)} lines more"
        return last

    def lines(self, do: str, **fields: Any) -> tuple[list[Json], Json]:
        """Sends a request; gives the lines of the answer and its last one."""
        with self._lock:
            pipe_in, pipe_out = self._pipes()
            try:
                pipe_in.write(json.dumps({"do": do, **fields}).encode() + b"\n")
                pipe_in.flush()
            except BrokenPipeError:
                pass
            lines: list[Json] = []
            for text in pipe_out:
                line = json.loads(text)
                if "error" in line:
                    raise JavaPeerError(f"{do}: {line['error']} (see {self.stderr})")
                if line.pop("end", False):
                    return lines, line
                lines.append(line)
        status = self._process.wait()
        raise JavaPeerError(f"the Java peer ended ({status}) during {do}:\n{self._last_words()}")

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def _last_words(self) -> str:
        return self.stderr.read_text(errors="replace")[-2000:]

    def halt(self) -> None:
        """Ends the JVM as a crash of the process does: nothing is shut down, abort files stay."""
        self.request("halt")
        self._process.wait()

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the JVM; stores that are open are left as after a crash."""
        pipe_in, pipe_out = self._pipes()
        # Either may find a JVM that has ended already.
        with contextlib.suppress(BrokenPipeError, ValueError):
            pipe_in.write(b'{"do":"exit"}\n')
        with contextlib.suppress(BrokenPipeError):
            pipe_in.close()
        try:
            self._process.wait(120)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        pipe_out.close()

    def __enter__(self) -> JavaPeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class OpenJavaStore:
    """A store that is open in a peer."""

    def __init__(self, peer: JavaPeer, root: str | os.PathLike[str], config: Config, **options: Any) -> None:
        """Loads and starts the store. Options: ``topics``, ``{topic: {attribute: value}}``; ``brokerHooks``
        false leaves out the checks and the delay rewrite that a broker does before its store."""
        self.peer = peer
        options = {key: value for key, value in options.items() if value is not None}
        os.makedirs(root, exist_ok=True)
        self.info = peer.request("open", root=os.path.abspath(root), config={**DEFAULTS, **config}, **options)
        self._handle = self.info.pop("store")

    def put(self, ops: Iterable[Json]) -> list[Json]:
        """A result per operation: status (EXCEPTION when the store threw one, with exception); and when the
        log was reached appendStatus, wroteOffset, wroteBytes, logicsOffset, msgNum, msgId, storeTimestamp."""
        return self.peer.lines("put", store=self._handle, ops=list(ops))[0]

    def contents(self, *, records: bool = True) -> JavaStoreContents:
        """Everything in the store; without the records of the log when only the queues are of interest."""
        lines, info = self.peer.lines("read", store=self._handle, records=records)
        contents = JavaStoreContents({**self.info, **info}, [], {}, [])
        for line in lines:
            kind = line.pop("kind")
            if kind == "record":
                contents.records.append(_message(line))
            elif kind == "queue":
                contents.queues[line["topic"], line["queueId"]] = JavaQueue(
                    line["topic"],
                    line["queueId"],
                    line["minOffset"],
                    line["maxOffset"],
                    line["maxPhysicOffset"],
                    line["type"],
                )
            elif kind == "unit":
                queue = contents.queues[line.pop("topic"), line.pop("queueId")]
                queue.units.append(line)
            else:
                contents.queues[line["topic"], line["queueId"]].messages.append(_message(line))
        return contents

    def query(self, queries: Iterable[Json]) -> list[Json]:
        """An answer per query: ``by_key``, ``by_time``, ``get``, ``by_physical_offset``."""
        lines, _ = self.peer.lines("query", store=self._handle, queries=list(queries))
        return [_answer(line) for line in lines]

    def settle(self) -> Json:
        """Waits until all is dispatched; the offsets and the checkpoint then."""
        return self.peer.request("settle", store=self._handle)

    def flush(self) -> int:
        """Flushes the commit log; where it is flushed then."""
        return int(self.peer.request("flush", store=self._handle)["flushedWhere"])

    def close(self) -> None:
        """A clean shutdown. Raises JavaPeerError when the abort file is still there after it."""
        done = self.peer.request("close", store=self._handle)
        if not done["clean"]:
            raise JavaPeerError("the Java store kept its abort file in a shutdown")


class JavaBench:
    """A bench in a peer, for rounds that alternate with another's: append, get or recover (``Benches.java``
    says what each takes and gives). The peer is one of ``BENCH_JVM``."""

    def __init__(self, peer: JavaPeer, kind: str, **fields: Any) -> None:
        self.peer = peer
        self._handle = peer.request("bench.open", kind=kind, **fields)["bench"]

    def round(self, **fields: Any) -> Json:
        """One timed round: at least seconds, cpuSeconds, and count or bytes."""
        return self.peer.request("bench.round", bench=self._handle, **fields)

    def close(self) -> None:
        self.peer.request("bench.close", bench=self._handle)

    def __enter__(self) -> JavaBench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def warm_up(
    rate: Callable[[], float],
    *,
    gain: float = 0.02,
    patience: int = 4,
    rounds_max: int = 400,
    seconds_max: float = math.inf,
) -> list[float]:
    """Runs rounds until their rate stops rising: until ``patience`` of them in a row have not been better by
    ``gain`` than the best before. Gives the rates."""
    rates: list[float] = []
    best, since = 0.0, 0
    deadline = time.monotonic() + seconds_max
    while since < patience and len(rates) < rounds_max and time.monotonic() < deadline:
        rates.append(rate())
        if rates[-1] > best * (1 + gain):
            best, since = rates[-1], 0
        else:
            since += 1
    return rates


class JavaStore:
    """Writes and reads whole stores; its JVM starts with the first request and ends with ``close``."""

    def __init__(self, directory: str | os.PathLike[str], version: str = ROCKETMQ_VERSION) -> None:
        """``directory``: for what the JVMs write beside the stores; ``version``: of RocketMQ."""
        self._directory = Path(directory)
        self._version = version
        self._peer: JavaPeer | None = None
        self._started = 0

    @property
    def peer(self) -> JavaPeer:
        """The JVM that serves all requests but those that halt."""
        if self._peer is None:
            self._peer = self.new_peer()
        return self._peer

    def new_peer(self, *, jvm: Sequence[str] = TEST_JVM, log: str = "WARN") -> JavaPeer:
        """A JVM of its own, for the caller to end."""
        self._started += 1
        return JavaPeer(self._directory / f"jvm-{self._started}", jvm=jvm, log=log, version=self._version)

    @contextlib.contextmanager
    def open(
        self,
        root: str | os.PathLike[str],
        config: Config | None = None,
        *,
        topics: Mapping[str, Mapping[str, str]] | None = None,
        broker_hooks: bool = True,
    ) -> Iterator[OpenJavaStore]:
        """A store open in the long-lived JVM; a clean shutdown ends it (also after an exception)."""
        store = OpenJavaStore(self.peer, root, config or {}, topics=topics, brokerHooks=broker_hooks)
        try:
            yield store
        finally:
            store.close()

    def write(
        self,
        root: str | os.PathLike[str],
        config: Config,
        ops: Iterable[Json],
        *,
        halt: bool = False,
        topics: Mapping[str, Mapping[str, str]] | None = None,
        broker_hooks: bool = True,
    ) -> list[Json]:
        """Puts into a new or existing store, then shuts it down cleanly; or, with ``halt``, ends the process
        as if it died (all is dispatched, nothing more is flushed). Gives what ``OpenJavaStore.put`` does."""
        if not halt:
            with self.open(root, config, topics=topics, broker_hooks=broker_hooks) as store:
                return store.put(ops)
        with self.new_peer() as peer:
            store = OpenJavaStore(peer, root, config, topics=topics, brokerHooks=broker_hooks)
            results = store.put(ops)
            store.settle()
            peer.halt()
        return results

    def read(
        self,
        root: str | os.PathLike[str],
        config: Config,
        queries: Iterable[Json] = (),
        *,
        topics: Mapping[str, Mapping[str, str]] | None = None,
        records: bool = True,
    ) -> JavaStoreContents:
        """Opens the store (that is: recovers it), reads everything, answers the queries, shuts down cleanly.

        The directory is changed as any opening by Java changes it; give it a copy where that matters."""
        with self.open(root, config, topics=topics) as store:
            contents = store.contents(records=records)
            contents.answers = store.query(queries)
        return contents

    def close(self) -> None:
        if self._peer is not None:
            self._peer.close()
            self._peer = None

    def __enter__(self) -> JavaStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
