"""`python -m tests.rocketmq_it --source CHECKOUT [CLASS ...]`: RocketMQ's own integration tests against mqlake.

A class runs in a JVM of its own, against the cluster of its worker, which the classes before it have used too. The
minutes are shared out: a class gets its part of what is left, and at least two minutes. Classes for which none are left
are counted as not run. Exit status 1 if a test failed, or was not run, that `known.toml` does not name.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import trustme

from tests.interop.brokers import Server
from tests.parts import needed
from tests.rocketmq_it.module import MAIN, SourceError, classes_with_tests, compiled

KNOWN = Path(__file__).parent / "known.toml"
LEAST_S = 120.0
"""For a class, however many are left."""
SETTINGS = {
    # as the tests' own brokers have it
    "enablePropertyFilter": "true",
    "enableCalcFilterBitMap": "true",
    "appendAckAsync": "true",
    "appendCkAsync": "true",
    "recallMessageEnable": "true",
    "enableConsumeQueueExt": "true",
    "loadBalancePollNameServerInterval": "500",
    "mappedFileSizeCommitLog": str(100 << 20),
    "maxIndexNum": "1000",
    "maxHashSlotNum": "4000",
    "deleteWhen": ";".join(f"{hour:02}" for hour in range(24)),
    "maxTransferCountOnMessageInMemory": "1024",
    "maxTransferCountOnMessageInDisk": "1024",
    # what tests look up in a broker of their own process is written down soon
    "flushConsumerOffsetInterval": "200",
    "staticTopicCleanInterval": "200",
}


@dataclass(frozen=True)
class Outcome:
    """What became of a test."""

    test: str
    """Class and method: `NotificationIT#testNotification`."""
    outcome: str
    """passed, failed, skipped (it cannot be asked from outside), ignored (by RocketMQ) or "not run"."""
    reason: str = ""


def tls_settings(directory: Path) -> dict[str, str]:
    """Of a broker with a new certificate, which is written to the directory."""
    certificate, key = directory / "server.pem", directory / "server.key"
    issued = trustme.CA().issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return {"tls.server.certPath": str(certificate), "tls.server.keyPath": str(key)}


class Cluster:
    """Three of mqlake's brokers, a name server, and the gRPC endpoint of the first."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        self.stores = directory / "stores"
        settings = {**SETTINGS, **tls_settings(directory)}
        command = [
            sys.executable,
            "-m",
            "mqlake",
            "serve",
            "--brokers",
            "3",
            "--json",
            "--store",
            str(self.stores),
        ]
        command += ["--port=0", "--namesrv-port=0", "--grpc-port=0", "--log-level=info"]
        command += [f"--set={key}={value}" for key, value in settings.items()]
        self._server = Server(command, r".*\"brokers\".*", directory / "serve.log", {})
        addresses = json.loads(self._server.match[0])
        self.properties = {
            "mqlake.namesrv": addresses["namesrv"].rpartition(":")[2],
            "mqlake.grpc": addresses["grpc"].rpartition(":")[2],
            "mqlake.stores": str(self.stores),
        }

    def close(self) -> None:
        self._server.end(signal.SIGTERM)


def outcomes(name: str, printed: Iterator[str]) -> Iterator[Outcome]:
    """Of what the JVM of the class printed."""
    for line in printed:
        if line.startswith("@ "):
            _, outcome, method, *reason = line.rstrip("\n").split(" ", 3)
            yield Outcome(f"{name}#{method}", outcome, "".join(reason))


def run_class(
    full_name: str, class_path: Sequence[str], properties: dict[str, str], directory: Path, seconds: float
) -> list[Outcome]:
    """All tests of a class; those that were not over in time are one outcome, `not run`."""
    name = full_name.rpartition(".")[2]
    home = directory / full_name
    home.mkdir(parents=True, exist_ok=True)
    given = {
        **properties,
        "user.home": str(home),
        "java.io.tmpdir": str(home),
        "tls.client.authServer": "false",
    }
    command = [needed("java"), "-Xmx768m", *(f"-D{key}={value}" for key, value in given.items())]
    command += ["-cp", os.pathsep.join(class_path), MAIN, full_name]
    log = directory / f"{name}.log"
    status = None
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=home)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if status is None:
                process.kill()
                process.wait()
    with log.open(errors="replace") as lines:
        found = list(outcomes(name, lines))
    if status != 0:
        why = f"exit status {status}" if status is not None else f"{seconds:.0f} s were over"
        found.append(Outcome(f"{name}#*", "not run", f"{why}: {log}"))
    return found


class Share:
    """Of the time among the classes that are left."""

    def __init__(self, classes: Sequence[str], minutes: float, workers: int) -> None:
        self._left: queue.SimpleQueue[str] = queue.SimpleQueue()
        for name in classes:
            self._left.put(name)
        self._end, self._workers = time.monotonic() + minutes * 60, workers

    def next(self) -> tuple[str, float] | None:
        """A class and its seconds, 0 if none are left; None after the last."""
        count = self._left.qsize()
        try:
            name = self._left.get_nowait()
        except queue.Empty:
            return None
        left = max(self._end - time.monotonic(), 0.0)
        return name, min(left, max(LEAST_S, left * self._workers / count))


def run_all(
    classes: Sequence[str],
    class_path: Sequence[str],
    directory: Path,
    *,
    minutes: float,
    workers: int,
    java: bool,
) -> list[Outcome]:
    share, found, lock = Share(classes, minutes, workers), list[Outcome](), threading.Lock()

    def work(number: int) -> None:
        place = directory / f"worker-{number}"
        cluster = None if java else Cluster(place)
        try:
            while task := share.next():
                name, seconds = task
                short = name.rpartition(".")[2]
                if seconds:
                    began = time.monotonic()
                    properties = cluster.properties if cluster else {}
                    of_class = run_class(name, class_path, properties, place, seconds)
                else:
                    began, of_class = 0.0, [Outcome(f"{short}#*", "not run", "no time was left")]
                with lock:
                    found.extend(of_class)
                    report(short, of_class, time.monotonic() - began if began else 0.0)
        finally:
            if cluster:
                cluster.close()

    with ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work, number) for number in range(workers)]:
            done.result()  # a cluster that does not start ends the run
    return found


def report(name: str, found: Sequence[Outcome], seconds: float) -> None:
    print(f"{name}: {count(found)}, {seconds:.0f} s", flush=True)
    for outcome in found:
        if outcome.outcome not in ("passed", "ignored"):
            print(f"  {outcome.outcome} {outcome.test} {outcome.reason[:300]}", flush=True)


def count(found: Sequence[Outcome]) -> str:
    by_kind = collections.Counter(outcome.outcome for outcome in found)
    return ", ".join(f"{number} {kind}" for kind, number in sorted(by_kind.items())) or "no tests"


def unexpected(found: Sequence[Outcome]) -> list[Outcome]:
    """What failed or was not run, and is not known."""
    known = tomllib.loads(KNOWN.read_text())["known"]
    return [o for o in found if o.outcome in ("failed", "not run") and o.test not in known]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rocketmq_it", description=__doc__)
    parser.add_argument("classes", nargs="*", help="part of a class's name  [all classes]")
    parser.add_argument(
        "--source", type=Path, default=os.environ.get("ROCKETMQ_SOURCE") or None, help="[$ROCKETMQ_SOURCE]"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="for all classes together")
    parser.add_argument("--workers", type=int, default=1, help="as many clusters, and classes at a time")
    parser.add_argument(
        "--directory", type=Path, help="where a new one is made for stores and logs  [temporary]"
    )
    parser.add_argument(
        "--java", action="store_true", help="the tests as they are, with RocketMQ's own brokers"
    )
    parser.add_argument("--json", type=Path, help="write all outcomes to this file")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all that was started ends too
    try:
        if arguments.source is None:
            raise SourceError("a checkout of apache/rocketmq is needed: --source PATH, or ROCKETMQ_SOURCE")
        source = arguments.source.resolve()
        names = classes_with_tests(source)
        chosen = [n for n in names if not arguments.classes or any(part in n for part in arguments.classes)]
        if not chosen:
            raise SourceError(
                f"no class of these has {' or '.join(arguments.classes)} in its name: {', '.join(names)}"
            )
        target = Path(__file__).parent / "java" / "target"
        class_path = compiled(source, target, outside=not arguments.java)
    except SourceError as error:
        print(error, file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="run-", dir=arguments.directory)).resolve()
    found = run_all(
        chosen,
        class_path,
        directory,
        minutes=arguments.minutes,
        workers=min(arguments.workers, len(chosen)),
        java=arguments.java,
    )
    if arguments.json:
        arguments.json.write_text(json.dumps([vars(outcome) for outcome in found], indent=1) + "\n")
    bad = unexpected(found)
    print(f"{len(chosen)} classes: {count(found)}; logs in {directory}")
    for outcome in bad:
        print(f"unexpected: {outcome.outcome} {outcome.test} {outcome.reason[:300]}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
