"""Consumers that read what only the archive has, on demand: `python -m bench.archive --mib 5120 --groups 1,10,100`.

    fill ─▶ archived ─▶ deleted here ─▶ a broker ─▶ each group pulls every queue from offset 0, and checks each record

Prints what the archive itself gives (its objects, read one after another in pieces of 64 MiB), and for each number of
groups: bytes a second of the log that left the archive, requests for each GiB, the first answer, and the broker's
memory and cache. With `--s3` the place is moto's S3 server, in a process of its own that keeps all objects in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from struct import Struct

from tests.broker.live import SUBSCRIPTION
from tests.interop.brokers import MqlakeBroker

from mqlake.formats.batch import encode_messages
from mqlake.message import Message, MessageExtBatch
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.remoting.loop import run
from mqlake.store.archive.manifest import read_manifest
from mqlake.store.archive.target import Target, parse_options
from mqlake.store.message_store import open_store

RECORD = Struct(">i16xqq").unpack_from
"""Size, queue offset, physical offset."""
TOPIC, QUEUES, BATCH, BODY = "Old", 8, 64, 1024
GIB, PIECE = 1 << 30, 64 << 20
PATIENCE_S = 600.0
S3 = "from tests.lake.s3 import s3_server\nwith s3_server() as s:\n print(s.endpoint, flush=True)\n input()"


def fill(root: Path, settings: dict[str, object], size: int) -> tuple[float, int]:
    """Messages of `size` bytes in all, archived: the seconds that took, and where the newest file begins."""
    began = time.monotonic()
    with open_store(root, settings) as store:
        batch, number = bytes(BODY), 0
        while store.max_phy_offset < size:
            blob = encode_messages([Message("", batch, f"t{n % 3}") for n in range(BATCH)])
            put = store.put_messages(MessageExtBatch(TOPIC, blob, queue_id=number % QUEUES))
            assert put.is_ok, put
            number += 1
        store.flush()
        assert store.archive is not None
        while store.archive.behind_bytes:
            time.sleep(0.2)  # a round that failed is repeated
        seconds, begin = time.monotonic() - began, 0
        for mapped_file in store.commit_log_files.mapped_files:
            if store.archive.has(mapped_file.file_from_offset + mapped_file.file_size):
                begin = mapped_file.file_from_offset + mapped_file.file_size
    return seconds, begin


def forget(root: Path, begin: int) -> None:
    """Deletes the log's files before `begin`, as a broker's retention does."""
    for path in (root / "commitlog").iterdir():
        if int(path.name) < begin:
            path.unlink()


def rate_of(target: Target) -> float:
    """Bytes a second of the archive's whole files, read one after another."""
    manifest = read_manifest(target)
    assert manifest is not None
    began, size = time.monotonic(), 0
    for each in manifest.objects:
        for start in range(0, each.size if each.is_whole else 0, PIECE):
            size += len(target.read(each.name, start, min(start + PIECE, each.size)))
    return size / (time.monotonic() - began)


async def consume(address: str, group: str, end: int) -> tuple[float, float, int]:
    """Reads every queue up to the physical offset `end`: seconds to the first answer, to the last, and messages
    before it."""
    began, first, archived = time.monotonic(), 0.0, 0

    async def queue(client: RemotingClient, queue_id: int) -> None:
        nonlocal first, archived
        offset = 0
        while True:
            header = PullMessageRequestHeader(
                consumer_group=group, topic=TOPIC, queue_id=queue_id, queue_offset=offset, max_msg_nums=32,
                sys_flag=SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0, subscription="*", sub_version=0,
                expression_type="TAG",
            )  # fmt: skip
            request = RemotingCommand.create_request(RequestCode.PULL_MESSAGE, header)
            answer = await client.invoke(address, request, PATIENCE_S)
            if answer.code == ResponseCode.PULL_NOT_FOUND:
                return
            assert answer.code == ResponseCode.SUCCESS, (answer.code, answer.remark)
            first = first or time.monotonic() - began
            body, position, physical_offset = answer.body_bytes(), 0, 0
            while position < len(body):
                size, queue_offset, physical_offset = RECORD(body, position)
                archived += physical_offset < end
                assert queue_offset == offset  # each once, in order
                offset, position = offset + 1, position + size
            assert int(answer.ext_fields["nextBeginOffset"]) == offset
            if physical_offset >= end:
                return

    async with RemotingClient() as client:
        await asyncio.gather(*(queue(client, queue_id) for queue_id in range(QUEUES)))
    return first, time.monotonic() - began, archived


@contextlib.contextmanager
def place(directory: Path, with_s3: bool) -> Iterator[tuple[str, str]]:
    """(url, options) of an empty place."""
    if not with_s3:
        yield f"file://{directory}/bucket", ""
        return
    process = subprocess.Popen(
        [sys.executable, "-c", S3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    try:
        from tests.lake.s3 import BUCKET, KEYS

        os.environ.update(KEYS)
        yield f"s3://{BUCKET}/bench", f"endpoint_url={process.stdout.readline().strip()}"
    finally:
        process.terminate()
        process.wait()


def status(broker: MqlakeBroker) -> dict[str, str]:
    async def ask() -> bytes:
        async with RemotingClient() as client:
            request = RemotingCommand.create_request(RequestCode.GET_BROKER_RUNTIME_INFO)
            return (await client.call(broker.address, request, PATIENCE_S)).body_bytes()

    return dict(json.loads(run(ask()))["table"])


def anonymous(broker: MqlakeBroker) -> int:
    """Bytes of memory that are no file's: the cache's pages are the system's to take."""
    text = Path(f"/proc/{broker.pid}/status").read_text()
    return int(text.partition("RssAnon:")[2].split()[0]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=int, default=1280)
    parser.add_argument("--groups", default="1,10")
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--cache-mib", type=int, default=1024)
    parser.add_argument("--file-mib", type=int, default=1024, help="mappedFileSizeCommitLog")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, place(Path(name), given.s3) as (url, options):
        archive: dict[str, object] = {
            "archive": url, "archiveOptions": options, "archiveInterval": 5, "archiveCacheSize": given.cache_mib << 20,
        }  # fmt: skip
        root = Path(name) / "broker" / "store" / "broker-0"
        sizes: dict[str, object] = {"mappedFileSizeCommitLog": given.file_mib << 20}
        seconds, begin = fill(root, {**archive, **sizes}, given.mib << 20)
        print(f"archived {given.mib} MiB in {seconds:.1f} s", flush=True)
        own = rate_of(Target(url, parse_options(options)))
        print(f"the place itself gives {own / 1e6:.0f} MB/s of {begin >> 20} MiB", flush=True)
        config = {**archive, **sizes, "longPollingEnable": "false", "diskCheckEnable": "false"}
        counts = list(map(int, given.groups.split(",")))
        here = {}
        for count in counts:
            with MqlakeBroker(Path(name) / "broker", config, small=False) as broker:
                found = all_groups(broker, count, begin)
                here[count] = count * begin / max(seconds for _, seconds, _ in found)
                print(
                    f"{count} groups, log here: {here[count] / 1e6:.0f} MB/s, CPU {broker.cpu_seconds():.1f} s",
                    flush=True,
                )
        forget(root, begin)
        for count in counts:
            with MqlakeBroker(Path(name) / "broker", config, small=False) as broker:
                found = all_groups(broker, count, begin)
                info = status(broker)
                taken = max(seconds for _, seconds, _ in found)
                rate, read = count * begin / taken, int(info["archiveReadBytes"])
                first, requests = max(first for first, _, _ in found), int(info["archiveRequests"])
                print(
                    f"{count} groups: {rate / 1e6:.0f} MB/s ({rate / own:.2f} of the place, {rate / here[count]:.2f} "
                    f"of the log here), first answer {first * 1000:.0f} ms, {requests / (read / GIB):.1f} requests a "
                    f"GiB, {read / begin:.2f} of the log read, cache {int(info['archiveCachedBytes']) >> 20} MiB, "
                    f"broker {anonymous(broker) >> 20} MiB, CPU {broker.cpu_seconds():.1f} s",
                    flush=True,
                )
                assert len({messages for _, _, messages in found}) == 1


def all_groups(broker: MqlakeBroker, count: int, end: int) -> list[tuple[float, float, int]]:
    """What consume() finds for each of `count` groups that read at the same time."""

    async def read() -> list[tuple[float, float, int]]:
        await make_topic(broker)
        return await asyncio.gather(*(consume(broker.address, f"GID_{n}", end) for n in range(count)))

    return run(read())


async def make_topic(broker: MqlakeBroker) -> None:
    from mqlake.client.admin import Admin

    async with Admin(broker.namesrv) as admin:
        await admin.create_topic(TOPIC, queues=QUEUES)


if __name__ == "__main__":
    main()
