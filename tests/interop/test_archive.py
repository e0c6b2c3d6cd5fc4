"""RocketMQ's own consumers, unchanged, read what only the bucket has: a real S3 server, a broker, Java clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.message import MessageExtBrokerInner
from mqlake.store.archive.manifest import read_local
from mqlake.store.archive_restore import restore_archive
from mqlake.store.message_store import open_store
from tests.interop.brokers import FOR_TESTS, MqlakeBroker
from tests.interop.java_client import JavaClients, message
from tests.lake.s3 import BUCKET, S3Server, s3_server
from tests.waiting import until

pytestmark = pytest.mark.java

TOPIC, QUEUES, COUNT, BODY = "Old", 4, 12_000, 1500
FILE_SIZE = 4 << 20
URL = f"s3://{BUCKET}/interop"


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


def settings(s3: S3Server) -> dict[str, object]:
    return {
        **FOR_TESTS,
        "mappedFileSizeCommitLog": FILE_SIZE,
        "archive": URL,
        "archiveOptions": f"endpoint_url={s3.endpoint}",
        "archiveInterval": 1,
    }


def body(number: int) -> bytes:
    return (b"%d " % number).ljust(BODY, b".")


def fill(root: Path, s3: S3Server) -> int:
    """Archives messages and deletes them here, but for those of the newest file, as a broker's retention does; how
    many of the log's bytes only the bucket has."""
    store_settings = {
        key: value
        for key, value in settings(s3).items()
        if key.startswith(("archive", "mappedFile", "maxHash", "maxIndex"))
    }
    with open_store(root, store_settings) as store:
        for number in range(COUNT):
            one = MessageExtBrokerInner(
                TOPIC,
                body(number),
                f"tag{number % 3}",
                [f"key{number}"],
                properties={"n": str(number), "UNIQ_KEY": f"{number:032X}"},
                queue_id=number % QUEUES,
                store_host=("127.0.0.1", 10911),
                born_host=("127.0.0.1", 1),
            )
            assert store.put_message(one).is_ok
        store.flush()
        store.wait_until_dispatched()
        until(lambda: store.archive and store.archive.behind_bytes == 0, "all is in the bucket")
    files = sorted((root / "commitlog").iterdir())
    used = [path for path in files if int(path.name) < COUNT * BODY]
    for path in used[:-1]:
        path.unlink()
    assert len(used) > 3
    return int(used[-1].name)


@pytest.fixture(scope="module")
def only_there(tmp_path_factory: pytest.TempPathFactory, s3: S3Server) -> tuple[Path, int]:
    directory = tmp_path_factory.mktemp("archived")
    return directory, fill(directory / "store" / "broker-0", s3)


@pytest.fixture(scope="module")
def broker(only_there: tuple[Path, int], s3: S3Server, java_clients: JavaClients) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(only_there[0], settings(s3)) as broker:
        java_clients.topic(broker, TOPIC, QUEUES)
        yield broker


def check(found: list[dict[str, object]], numbers: list[int]) -> None:
    """Each once, and each queue's in order."""
    of_queues: dict[object, list[int]] = {}
    for each in found:
        data = each["body"]
        assert isinstance(data, bytes) and len(data) == BODY
        of_queues.setdefault(each["queueId"], []).append(int(data.split()[0]))
    for queue_id, got in of_queues.items():
        assert got == [n for n in numbers if n % QUEUES == queue_id]


def status(broker: MqlakeBroker) -> dict[str, str]:
    """What the broker says of itself."""
    arguments = ["admin", "-n", broker.namesrv, "broker", "status", "--json"]
    (found,) = json.loads(CliRunner().invoke(cli, arguments).stdout).values()
    return dict(found)


def test_from_offset_zero_with_few_requests(
    broker: MqlakeBroker, only_there: tuple[Path, int], s3: S3Server, java_clients: JavaClients
) -> None:
    s3.requests.clear()
    queues = java_clients.all_of(broker, TOPIC, COUNT)
    check([each for queue in queues.values() for each in queue], list(range(COUNT)))
    assert [each["queueOffset"] for each in queues[0]] == list(range(COUNT // QUEUES))
    # blocks of 1, 4 and 16 MiB, or a file at once; besides those of the uploader's rounds, which ask for the manifest
    assert s3.requests["GET"] <= 4 * only_there[1] / FILE_SIZE + 200


def test_push_consumers_with_tags_and_sql(broker: MqlakeBroker, java_clients: JavaClients) -> None:
    with java_clients.push(broker, "GID_tags", TOPIC, tags="tag1", **{"from": "FIRST"}) as consumer:
        wanted = [n for n in range(COUNT) if n % 3 == 1]
        assert sorted(int(each["body"].split()[0]) for each in consumer.take(len(wanted))) == wanted
    with java_clients.push(
        broker, "GID_sql", TOPIC, sql="n < 100 AND TAGS = 'tag2'", **{"from": "FIRST"}
    ) as consumer:
        wanted = [n for n in range(100) if n % 3 == 2]
        assert sorted(int(each["body"].split()[0]) for each in consumer.take(len(wanted))) == wanted


def test_a_new_machine_has_the_same_log(only_there: tuple[Path, int], s3: S3Server, tmp_path: Path) -> None:
    """Ready with the newest file alone; what it reads from the bucket, and what it has, is the old one's, byte by
    byte."""
    old, new = only_there[0] / "store" / "broker-0", tmp_path / "store"
    report = restore_archive(URL, str(new), storage_options=s3.options)
    kept = read_local(str(old))
    assert kept is not None and report.begin == 0 and report.log_begin == only_there[1]
    (name,) = [path.name for path in (new / "commitlog").iterdir() if int(path.name) == report.log_begin]
    size = report.end - report.log_begin
    ours, theirs = ((root / "commitlog" / name).read_bytes()[:size] for root in (old, new))
    assert ours == theirs and len(ours) == size
    for queue_id in range(QUEUES):
        part = Path("consumequeue") / TOPIC / str(queue_id)
        units = [b"".join(p.read_bytes() for p in sorted((root / part).iterdir())) for root in (old, new)]
        assert units[0] == units[1] and any(units[0])


def test_tools_see_three_beginnings(broker: MqlakeBroker, only_there: tuple[Path, int]) -> None:
    directory = only_there[0] / "store" / "broker-0"
    found = CliRunner().invoke(cli, ["store", "info", str(directory), "--json"])
    info = json.loads(found.stdout)
    assert info["minOffset"] == only_there[1]
    assert info["archive"]["begin"] == 0 and info["archive"]["end"] >= info["minOffset"]
    assert status(broker)["archiveBeginOffset"] == "0" and status(broker)["archive"] == URL


def test_a_bucket_that_is_away_moves_nobody(
    broker: MqlakeBroker, s3: S3Server, java_clients: JavaClients, tmp_path: Path
) -> None:
    """A new machine that starts without its bucket; a consumer that waits, and goes on where it was when the bucket is
    back. Then the archive is the new machine's: the old one's log is another one now."""
    store = tmp_path / "store" / "broker-0"
    restore_archive(URL, str(store), storage_options=s3.options)
    s3.is_away = True
    try:
        with MqlakeBroker(tmp_path, settings(s3)) as new:
            java_clients.topic(new, TOPIC, QUEUES)
            with java_clients.push(new, "GID_waits", TOPIC, **{"from": "FIRST"}) as consumer:
                before = s3.requests["GET"]
                until(lambda: s3.requests["GET"] >= before + 4, "it has asked")
                with java_clients.producer(new) as producer:  # the rest of the broker works
                    (sent,) = producer.send("Other", "sync", [message(b"new")])
                    assert sent["status"] == "SEND_OK"
                s3.is_away = False
                found = consumer.take(COUNT)
                assert sorted(int(each["body"].split()[0]) for each in found) == list(range(COUNT))
                until(
                    lambda: status(new)["archiveTrouble"] == "" and status(new)["archiveBehindBytes"] == "0"
                )
                with java_clients.producer(broker) as producer:
                    producer.send("Other", "sync", [message(b"of the old machine")])
                until(lambda: "of another log" in status(broker)["archiveTrouble"], "the old one is refused")
    finally:
        s3.is_away = False
