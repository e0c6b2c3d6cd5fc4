"""`python -m bench.omb --source DIR`: OpenMessaging Benchmark's driver of RocketMQ against both brokers, in turn.

    a checkout of openmessaging/benchmark ──maven──▶ its classes, with RocketMQ's client of the broker's version
    each round: mqlake serve ◀── the benchmark's JVM;  then RocketMQ's broker ◀── the same, same workload

Workload and driver are its own YAML files' keys, with a minute of measuring for their fifteen. The result is JSON: the
command, and for each side and round what the benchmark measured, and the broker's CPU time for each message.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.interop.brokers import UNHURRIED, Broker, JavaBroker, MqlakeBroker
from tests.interop.java_peer import ROCKETMQ_VERSION
from tools.parts import find

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).parent
TARGET = ROOT / "build" / "omb"
MAIN = "io.openmessaging.benchmark.Benchmark"
PAYLOADS = {100: "100b", 1024: "1Kb"}
BROKER_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")
MEANS = ("publishRate", "consumeRate", "publishErrorRate", "backlog")
LATENCIES = tuple(
    f"aggregated{what}Latency{which}"
    for what in ("Publish", "EndToEnd")
    for which in ("Avg", "50pct", "99pct", "Max")
)
SIDES: dict[str, Callable[[Path], Broker]] = {
    "mqlake": lambda where: MqlakeBroker(where, UNHURRIED, small=False),
    "rocketmq": lambda where: JavaBroker(where, UNHURRIED, small=False, jvm=BROKER_JVM),
}


class OmbError(Exception):
    """The benchmark does not build or run; the text has what it said."""


def build(source: Path) -> list[str]:
    """The class path. OmbError."""
    if not (source / "driver-rocketmq" / "src").is_dir():
        raise OmbError(f"{source} is no checkout of github.com/openmessaging/benchmark")
    classpath = TARGET / "classpath"
    if not classpath.exists():
        maven = find("maven")
        if maven is None:
            raise OmbError("Maven is needed: apt-get install maven")
        command = [maven, "-q", "-B", f"-Domb.source={source}", f"-Domb.target={TARGET}", "process-classes"]
        done = subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise OmbError(f"the benchmark does not build:\n{done.stdout[-4000:]}")
    return [str(TARGET / "classes"), *classpath.read_text().strip().split(os.pathsep)]


def workload(given: argparse.Namespace) -> dict[str, Any]:
    """As the benchmark's workloads/*.yaml have it. JSON is YAML."""
    return {
        "name": f"1 topic / {given.partitions} partitions / {given.size} bytes",
        "topics": 1,
        "partitionsPerTopic": given.partitions,
        "keyDistributor": "NO_KEY",
        "messageSize": given.size,
        "payloadFile": str(given.source / "payload" / f"payload-{PAYLOADS[given.size]}.data"),
        "subscriptionsPerTopic": 1,
        "consumerPerSubscription": 1,
        "producersPerTopic": 1,
        "producerRate": given.rate,
        "consumerBacklogSizeGB": 0,
        "warmupDurationMinutes": 1,
        "testDurationMinutes": given.minutes,
    }


def driver(given: argparse.Namespace, namesrv: str) -> dict[str, Any]:
    """As driver-rocketmq/rocketmq.yaml has it; there batches are on."""
    return {
        "name": "RocketMQ",
        "driverClass": "io.openmessaging.benchmark.driver.rocketmq.RocketMQBenchmarkDriver",
        "clusterName": "DefaultCluster",
        "namesrvAddr": namesrv,
        "vipChannelEnabled": False,
        "batchCQ": given.batches,
        "autoBatch": given.batches,
        "enableBackpressure": True,
        "backpressureConcurrency": 1024,
        "accessKey": "",
        "secretKey": "",
    }


def measure(given: argparse.Namespace, classpath: list[str], broker: Broker, place: Path) -> dict[str, Any]:
    """One run of the benchmark. OmbError with the end of its log."""
    files = {"driver.yaml": driver(given, broker.namesrv), "workload.yaml": workload(given)}
    for name, content in files.items():
        (place / name).write_text(json.dumps(content))
    out, log = place / "out.json", place / "omb.log"
    command = ["java", "-Xms512m", "-Xmx1g", f"-Duser.home={place}", "-cp", os.pathsep.join(classpath), MAIN]
    command += ["--drivers", "driver.yaml", "--output", str(out), "workload.yaml"]
    before = broker.cpu_seconds()
    with log.open("w") as said:
        done = subprocess.run(command, cwd=place, stdout=said, stderr=said, check=False)
    used = broker.cpu_seconds() - before
    if done.returncode or not out.exists():
        raise OmbError(f"the benchmark ended with {done.returncode}:\n{log.read_text()[-4000:]}")
    found = json.loads(out.read_text())
    taken = {name: round(statistics.fmean(found[name]), 1) for name in MEANS}
    taken |= {name: round(found[name], 2) for name in LATENCIES}
    # its warm-up is measured with it: the broker works for both
    minutes = given.minutes + 1
    taken["brokerCpuUsPerMessage"] = round(used * 1e6 / (taken["publishRate"] * 60 * minutes), 1)
    return taken


def run(given: argparse.Namespace) -> dict[str, Any]:
    classpath = build(given.source)
    commit = subprocess.run(
        ["git", "-C", str(given.source), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    rounds: list[dict[str, Any]] = []
    for number in range(given.rounds):
        with tempfile.TemporaryDirectory(prefix="mqlake-omb-", dir=given.dir) as directory:
            both = list(SIDES.items())
            for name, made in both if number % 2 == 0 else reversed(both):
                place = Path(directory, name)
                place.mkdir()
                with made(place / "broker") as broker:
                    found = measure(given, classpath, broker, place)
                print(json.dumps({"round": number, "broker": name, **found}), file=sys.stderr, flush=True)
                rounds.append({"round": number, "broker": name, **found})
    return {
        "command": f"python -m bench.omb {' '.join(given.command)}",
        "benchmark": commit or "unknown",
        "rocketmq": ROCKETMQ_VERSION,
        "machine": {"processors": os.cpu_count(), "kind": platform.machine(), "load": os.getloadavg()[2]},
        "workload": workload(given) | {"payloadFile": PAYLOADS[given.size]},
        "batches": given.batches,
        "rounds": rounds,
        "median": {name: median([each for each in rounds if each["broker"] == name]) for name in SIDES},
    }


def median(rounds: list[dict[str, Any]]) -> dict[str, float]:
    names = [*MEANS, *LATENCIES, "brokerCpuUsPerMessage"]
    return {name: round(statistics.median(each[name] for each in rounds), 2) for name in names}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--source", type=Path, required=True, help="a checkout of openmessaging/benchmark")
    parser.add_argument("--rounds", type=int, default=3, help="each with both brokers; default: 3")
    parser.add_argument(
        "--minutes", type=int, default=1, help="measured, after a minute of warm-up; default: 1"
    )
    parser.add_argument("--rate", type=int, default=5000, help="messages a second that are offered")
    parser.add_argument("--size", type=int, default=1024, choices=sorted(PAYLOADS), help="bytes of a body")
    parser.add_argument("--partitions", type=int, default=16, help="queues of the topic; default: 16")
    parser.add_argument("--batches", action="store_true", help="the client's auto batches into a batch queue")
    parser.add_argument("--json", type=Path, help="where the result goes; default: standard output")
    parser.add_argument("--dir", type=Path, help="where stores are; default: the temporary directory")
    given = parser.parse_args(arguments)
    given.command, given.source = arguments, given.source.resolve()
    try:
        text = json.dumps(run(given), indent=2)
    except OmbError as error:
        print(error, file=sys.stderr)
        return 1
    if given.json:
        given.json.write_text(text + "\n")
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
