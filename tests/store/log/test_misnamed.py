"""Files of the log under wrong names: no start cuts what lies in them, and a repair gives every message back."""

from __future__ import annotations

import itertools
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.errors import StoreCorruptError
from mqlake.store.check.repair import ActionKind, plan_repair, repair_store
from mqlake.store.check.verify import verify_store
from mqlake.store.log.misnamed import (
    PHYSICAL_OFFSET_POSITION,
    copied_files,
    misnamed_files,
    own_offset,
    record_of_another_file,
)
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.store.small_store import SETTINGS, change, contents, fill, log_file, message, pretend_crash

FILE_SIZE = 16384
ORDERS = [order for order in itertools.permutations(range(4)) if order != (0, 1, 2, 3)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three files with records; the fourth is allocated and empty. The process was killed (as Java's leaves it)."""
    root = tmp_path_factory.mktemp("whole") / "store"
    fill(root, count=150)
    last = root / "commitlog" / f"{3 * FILE_SIZE:020d}"
    last.write_bytes(bytes(FILE_SIZE))
    assert len(list((root / "commitlog").iterdir())) == 4
    assert all(any(log_file(root, number).read_bytes()) for number in range(3))
    pretend_crash(root)
    return root


def permuted(whole: Path, root: Path, order: tuple[int, ...]) -> Path:
    shutil.copytree(whole, root)
    paths = [log_file(root, number) for number in range(4)]
    for path in paths:
        path.rename(path.with_suffix(".aside"))
    for path, number in zip(paths, order, strict=True):
        path.with_suffix(".aside").rename(paths[number])
    return root


def record(whole: Path, physical_offset: int) -> bytes:
    """The first record of a store, as it would be at another place."""
    data = log_file(whole).read_bytes()
    size = int.from_bytes(data[:4], "big")
    at = PHYSICAL_OFFSET_POSITION
    return data[:at] + physical_offset.to_bytes(8, "big") + data[at + 8 : size]


def numbers_in(root: Path) -> list[bytes]:
    with ReadOnlyStore(root) as view:
        return [
            found.body
            for queue in view.consume_queues
            for offset in range(queue.max_offset_in_queue)
            for found in view.get_message("g", queue.topic, queue.queue_id, offset, 1).messages()
        ]


@pytest.mark.parametrize("order", ORDERS)
def test_no_order_of_the_files_loses_a_message(whole: Path, tmp_path: Path, order: tuple[int, ...]) -> None:
    root = permuted(whole, tmp_path / "store", order)
    before = contents(root)
    with pytest.raises(
        StoreCorruptError, match=r"belongs to the file 0{15}\d{5}: .*renamed or copied"
    ) as error:
        open_store(root, SETTINGS)
    assert error.value.path.startswith(str(root / "commitlog")) and "store repair" in str(error.value)
    assert contents(root) == before
    assert {f.kind for f in verify_store(root).findings if f.severity.name == "DAMAGE"} >= {"file name"}
    assert {action.kind for action in plan_repair(root).actions} == {ActionKind.RENAME}
    assert contents(root) == before
    report = repair_store(root)
    assert report.plan.lost_count == 0 and report.after is not None and report.after.ok
    assert contents(root)["commitlog/" + "0" * 20] == contents(whole)["commitlog/" + "0" * 20]
    with open_store(root, SETTINGS) as store:
        assert store.put_message(message(150)).is_ok
    assert sorted(numbers_in(root)) == sorted(message(number).body for number in range(151))


@pytest.mark.parametrize("names", [{0: 7}, {1: 8}, {0: 4, 1: 5, 2: 6}])
def test_commands_that_only_read_name_the_file_too(
    whole: Path, tmp_path: Path, names: dict[int, int]
) -> None:
    """Else `store info` would say that nothing can be saved of what a repair heals."""
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    for number, wrong in names.items():
        old, new = (root / "commitlog" / f"{place * FILE_SIZE:020d}" for place in (number, wrong))
        old.rename(new)
    if len(names) == 3:
        (root / "commitlog" / f"{3 * FILE_SIZE:020d}").unlink()
    for command in ("info", "dump"):
        done = CliRunner().invoke(cli, ["store", command, str(root)])
        assert done.exit_code == 1
        assert (
            f"{min(names.values()) * FILE_SIZE:020d}: corrupt at byte 0: its records are those of"
            in done.output
        )
        assert "`mqlake store repair` gives it that name back" in done.output


def test_a_copy_in_the_place_of_another_file_is_refused_and_named(whole: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    shutil.copy(log_file(root, 1), log_file(root, 2))
    with pytest.raises(StoreCorruptError, match=f"belongs to the file {FILE_SIZE:020d}"):
        open_store(root, SETTINGS)
    (damage,) = [f for f in verify_store(root).findings if f.kind == "file name"]
    assert damage.path == str(log_file(root, 2)) and "which has them itself" in damage.text
    assert misnamed_files(str(root / "commitlog"), FILE_SIZE) == {}
    copied = copied_files(str(root / "commitlog"), FILE_SIZE)
    assert copied == {str(log_file(root, 2)): str(log_file(root, 1))}
    assert repair_store(root, accept_loss=True).copies is not None
    with open_store(root, SETTINGS):
        pass


def test_a_record_of_another_file_behind_damage_is_no_torn_tail(whole: Path, tmp_path: Path) -> None:
    """The head of a misnamed file is damaged too: the records after it say where they belong."""
    root = permuted(whole, tmp_path / "store", (0, 1, 3, 2))
    with log_file(root, 3).open("r+b") as file:
        file.write(bytes(200))
    before = contents(root)
    with pytest.raises(StoreCorruptError, match=f"belongs to the file {2 * FILE_SIZE:020d}"):
        open_store(root, SETTINGS)
    assert contents(root) == before


def test_a_torn_record_with_a_record_for_a_body_is_a_torn_tail(whole: Path, tmp_path: Path) -> None:
    """A body may hold a record; it does not lie at the place that it names."""
    root = tmp_path / "store"
    shutil.copytree(whole, root)
    outer = message(150)
    outer.body = record(whole, 500) + bytes(1000)
    with open_store(root, SETTINGS) as store:
        result = store.put_message(outer)
        assert result.append_result is not None
        at, size = result.append_result.wrote_offset, result.append_result.wrote_bytes
    path, position = log_file(root, at // FILE_SIZE), at % FILE_SIZE
    change(path, position + size - 700, bytes(700))
    (root / "checkpoint").unlink()
    pretend_crash(root)
    array = np.fromfile(path, np.uint8)
    assert record_of_another_file(array, position, FILE_SIZE, at - position, FILE_SIZE) is None
    with open_store(root, SETTINGS):
        pass
    assert sorted(numbers_in(root)) == sorted(message(number).body for number in range(150))


@pytest.mark.parametrize("seed", range(40))
def test_finds_the_first_record_that_lies_at_its_place_in_the_wrong_file(whole: Path, seed: int) -> None:
    """Against the places at which records were written, among random bytes and records of the file itself."""
    rng = random.Random(seed)
    array = np.frombuffer(bytearray(rng.randbytes(FILE_SIZE)), np.uint8).copy()
    expected, position, base = None, rng.randrange(100), 7 * FILE_SIZE
    while position < FILE_SIZE - 600:
        owner = rng.choice([7, 7, 7, 3, 9])
        shift = rng.choice([0, 0, 8])
        data = record(whole, owner * FILE_SIZE + position + shift)
        array[position : position + len(data)] = np.frombuffer(data, np.uint8)
        if owner != 7 and not shift and expected is None:
            expected = position, owner * FILE_SIZE
        position += len(data) + rng.randrange(300)
    assert record_of_another_file(array, 0, FILE_SIZE, base, FILE_SIZE) == expected
    if expected is not None:
        found = expected[0]
        assert record_of_another_file(array, found, FILE_SIZE, base, FILE_SIZE) == expected
        assert record_of_another_file(array, found + 1, FILE_SIZE, base, FILE_SIZE) != expected
        assert own_offset(array[found:], base + found, FILE_SIZE) == expected[1] + found
