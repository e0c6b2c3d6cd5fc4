"""The column codecs as a whole: against stores of the Java store, and which twin does the work."""

from __future__ import annotations

import base64
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mqlake.formats import columns
from mqlake.formats.columns import ScanStop
from mqlake.formats.index import IndexHeader, index_file_size
from mqlake.formats.record import (
    MESSAGE_MAGIC_CODE,
    decode_record,
)
from mqlake.message import host_bytes
from tests import golden
from tests.formats.columns_cases import (
    DELAY_LEVELS,
    INPUT,
    item,
    log_of,
)


@pytest.fixture(scope="module", params=golden.CASES)
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> golden.Golden:
    return golden.unpack(request.param, tmp_path_factory.mktemp("golden"))


class TestGoldens:
    """Stores of the Java store: its log read to columns, its queues and index made anew from them."""

    def scans(self, store: golden.Golden) -> Iterator[tuple[np.ndarray, columns.Scan]]:
        for path in sorted((store.root / "commitlog").iterdir()):
            buf = np.frombuffer(path.read_bytes(), np.uint8)
            yield buf, columns.scan_records(buf, 0, len(buf), int(path.name))

    def test_records(self, twin: ModuleType, store: golden.Golden) -> None:
        seen = []
        for buf, found in self.scans(store):
            assert found.stop in (ScanStop.BLANK, ScanStop.END)
            bodies = columns.gather(buf, found.body_start, found.body_length)
            properties = columns.gather(buf, found.properties_start, found.properties_length)
            for n in range(len(found)):
                body, text = (
                    data[offsets[n] : offsets[n + 1]].tobytes() for offsets, data in (bodies, properties)
                )
                seen.append(
                    {
                        "topic": found.topics[found.topic_id[n]].decode(),
                        "queueId": found.queue_id[n],
                        "queueOffset": found.queue_offset[n],
                        "physicalOffset": found.physical_offset[n],
                        "size": found.size[n],
                        "flag": found.flag[n],
                        "sysFlag": found.sys_flag[n],
                        "bodyCrc": found.body_crc[n],
                        "body": base64.b64encode(body).decode(),
                        "bornTimestamp": found.born_timestamp[n],
                        "storeTimestamp": found.store_timestamp[n],
                        "reconsumeTimes": found.reconsume_times[n],
                        "preparedTransactionOffset": found.prepared_transaction_offset[n],
                        "propertiesString": text.decode(),
                    }
                )
        expected = [{name: record_[name] for name in seen[0]} for record_ in store.expected["records"]]
        assert seen == expected

    def test_property_crc(self, twin: ModuleType, store: golden.Golden) -> None:
        has_them = store.config.get("enabledAppendPropCRC", False)
        for path in sorted((store.root / "commitlog").iterdir()):
            buf = np.frombuffer(path.read_bytes(), np.uint8)
            found = columns.scan_records(buf, 0, len(buf), int(path.name), force_prop_crc=True)
            whole = columns.scan_records(buf, 0, len(buf), int(path.name))
            assert found.position.tolist() == whole.position.tolist()
            if len(whole) > 1:  # the FLAG of the first record, which no other checksum covers
                damaged = buf.copy()
                damaged[16] ^= 1
                assert len(columns.scan_records(damaged, 0, len(buf), int(path.name))) == (
                    0 if has_them else len(whole)
                )

    def test_consume_queues(self, twin: ModuleType, store: golden.Golden) -> None:
        by_offset = {}
        for buf, found in self.scans(store):
            result = columns.dispatch_columns(buf, found, delay_levels=DELAY_LEVELS)
            for n, offset in enumerate(found.physical_offset.tolist()):
                by_offset[offset] = (
                    found.size[n],
                    result.tags_code[n],
                    result.inner_num[n],
                    result.inner_base[n],
                )
        units = [(queue["type"], unit) for queue in store.expected["queues"] for unit in queue["units"]]
        assert units
        for kind, unit in units:
            size, code, num, base = by_offset[unit["physicalOffset"]]
            assert (size, num) == (unit["size"], unit["batchNum"])
            assert code == unit["tagsCode"]
            if kind == "BatchCQ":
                assert base == unit["queueOffset"]

    def test_index_files(self, twin: ModuleType, store: golden.Golden) -> None:
        slots, entries = store.config["maxHashSlotNum"], store.config["maxIndexNum"]
        parts = []
        for buf, found in self.scans(store):
            result = columns.dispatch_columns(buf, found, delay_levels=DELAY_LEVELS)
            owners = result.key_record
            parts.append((result.key_hash, found.physical_offset[owners], found.store_timestamp[owners]))
        codes, offsets, times = (np.concatenate(column) for column in zip(*parts, strict=True))
        done, end_offset, end_time = 0, 0, 0
        for path in sorted((store.root / "index").iterdir()):
            index = np.zeros(index_file_size(slots, entries), np.uint8)
            header = IndexHeader(end_time, end_time, end_offset, end_offset)
            index[:40] = np.frombuffer(header.encode(), np.uint8)
            done += columns.index_put_many(index, slots, entries, codes[done:], offsets[done:], times[done:])
            assert index.tobytes() == path.read_bytes()
            end_offset, end_time = int(offsets[done - 1]) if done else 0, int(times[done - 1]) if done else 0
        assert done == len(codes)

    def test_records_made_anew(self, twin: ModuleType, store: golden.Golden) -> None:
        for buf, found in self.scans(store):
            for n in np.flatnonzero(found.prepared_transaction_offset == 0).tolist():
                position, size = int(found.position[n]), int(found.size[n])
                message = decode_record(buf.tobytes(), position)
                start = int(found.properties_start[n])
                own = buf[start : start + int(found.properties_length[n])].tobytes()
                out = np.zeros(size + 8, np.uint8)
                result = columns.append_batch(
                    out,
                    0,
                    len(out),
                    np.frombuffer(item(message.body, own, message.flag), np.uint8),
                    base_offset=message.physical_offset,
                    topic=message.topic.encode(),
                    queue_id=message.queue_id,
                    queue_offset=message.queue_offset,
                    sys_flag=message.sys_flag,
                    born_timestamp=message.born_timestamp,
                    born_host=host_bytes(message.born_host),
                    store_timestamp=message.store_timestamp,
                    store_host=host_bytes(message.store_host),
                    reconsume_times=message.reconsume_times,
                    extra_props=b"",
                    version=1 if message.magic == MESSAGE_MAGIC_CODE else 2,
                    max_record_size=1 << 20,
                )
                assert (result.n, result.wrote) == (1, size)
                assert out[4:size].tobytes() == buf[position + 4 : position + size].tobytes()


class TestGather:
    def test_slices_back_to_back(self, twin: ModuleType) -> None:
        buf = INPUT.put(b"0123456789")
        starts, lengths = np.array([8, 0, 10, 3], np.int64), np.array([2, 3, 0, 1], np.int32)
        offsets, data = columns.gather(buf, starts, lengths)
        assert offsets.dtype == np.int32
        assert offsets.tolist() == [0, 2, 5, 5, 6]
        assert data.tobytes() == b"890123"
        large, again = columns.gather(buf, starts, lengths, large=True)
        assert large.dtype == np.int64
        assert (large.tolist(), again.tobytes()) == (offsets.tolist(), data.tobytes())

    def test_nothing(self, twin: ModuleType) -> None:
        offsets, data = columns.gather(INPUT.put(b"x"), np.empty(0, np.int64), np.empty(0, np.int32))
        assert (offsets.tolist(), len(data)) == ([0], 0)

    @pytest.mark.parametrize(
        ("start", "length"), [(-1, 1), (10, 1), (9, 2), (11, 0), (2**62, 2**62), (0, -1), (-(2**63), 1)]
    )
    def test_slices_outside(self, twin: ModuleType, start: int, length: int) -> None:
        buf = INPUT.put(b"0123456789")
        starts, lengths = np.array([0, start, 1], np.int64), np.array([1, length, 1], np.int64)
        with pytest.raises(ValueError, match="outside the buffer"):
            columns.gather(buf, starts, lengths)

    def test_lengths_whose_sum_overflows(self, twin: ModuleType) -> None:
        lengths = np.array([5, 2**63 - 1, 2**63 - 1, 2], np.int64)
        with pytest.raises(ValueError, match="outside the buffer"):
            columns.gather(INPUT.put(b"0123456789"), np.zeros(4, np.int64), lengths)

    def test_columns_of_a_scan(self, twin: ModuleType) -> None:
        bodies = [bytes([65 + i]) * i for i in range(20)]
        buf = INPUT.put(log_of([{"body": body} for body in bodies]))
        found = columns.scan_records(buf, 0, len(buf), 0)
        offsets, data = columns.gather(buf, found.body_start, found.body_length)
        blob = data.tobytes()
        assert [blob[a:b] for a, b in itertools.pairwise(offsets)] == bodies


def run_python(code: str, tmp_path: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"MQLAKE_NO_NATIVE": "0"} | environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class TestChoice:
    TWIN = "from mqlake.formats import columns; print(columns.record_codec().__name__.split('.')[-1])"

    def test_compiled_unless_told_otherwise(self, tmp_path: Path) -> None:
        assert run_python(self.TWIN, tmp_path) == "columns"
        assert run_python(self.TWIN, tmp_path, MQLAKE_NO_NATIVE="1") == "plain"

    def test_checksums_without_isal(self, tmp_path: Path) -> None:
        """By native code's own tables, of bytes of any length."""
        code = """
import sys
sys.modules["isal"] = None
import numpy as np
from mqlake.native.checksums import crc32_address
from tests.formats.columns_cases import log_of
from mqlake.formats.columns import record_codec, walk_records
assert crc32_address() == 0 and record_codec().__name__ == "mqlake.native.columns"
log = np.frombuffer(log_of([{"body": bytes(range(n % 256)) * 2} for n in range(90)]), np.uint8)
damaged = log.copy()
damaged[-40] ^= 1
print(walk_records(log, 0, len(log), 0).records, walk_records(damaged, 0, len(log), 0).records)
"""
        assert run_python(code, tmp_path, PYTHONPATH=str(Path(__file__).parents[2])) == "90 89"
