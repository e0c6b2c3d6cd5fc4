"""backup: the restored store has what the original had; incremental, beside a writer, after kills and on odd input."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from mqlake.errors import ConfigError, StoreError
from mqlake.store import backup as module
from mqlake.store.backup import back_up, restore
from mqlake.store.backup_check import verify_backup
from mqlake.store.backup_manifest import read_manifest
from mqlake.store.check.diff import diff_stores
from mqlake.store.check.verify import verify_store
from mqlake.store.message_store import open_store
from mqlake.store.read_only import ReadOnlyStore
from tests.store.small_store import SETTINGS, contents, fill, flip, log_file, message


def keys(root: Path) -> list[bytes]:
    """The bodies in the order of the log."""
    with ReadOnlyStore(root) as store:
        return [
            bytes(store.look_message_by_offset(int(at) + chunk.mapped_file.file_from_offset).body)
            for chunk in store.scan()
            for at in chunk.scan.position
        ]


def same(root: Path, restored: Path) -> bool:
    return (
        diff_stores(str(root), str(restored), queues=True).is_equal
        and not verify_store(restored).damage_count
    )


def test_whole_and_then_what_is_new(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"T@G":{0:7}}}')
    (root / "config" / "secret.key").write_text("x")
    (root / "config" / "secret.key").chmod(0o600)
    before = contents(root)
    first = back_up(str(root), str(saved))
    assert contents(root) == before, "a backup writes nothing into the store"
    assert (first.start, first.kept_bytes, first.damage) == (0, 0, [])
    again = back_up(str(root), str(saved))
    assert (again.copied_bytes, again.kept_bytes, again.end) == (0, first.copied_bytes, first.end)
    fill(root, 200, 130)
    third = back_up(str(root), str(saved))
    assert third.kept_bytes == first.copied_bytes and third.copied_bytes == third.end - first.end
    report = restore(str(saved), str(tmp_path / "restored"))
    assert (report.start, report.end) == (0, third.end)
    assert same(root, tmp_path / "restored")
    assert not (tmp_path / "restored" / "abort").exists(), "as after a clean end"
    assert (tmp_path / "restored" / "config" / "consumerOffset.json").read_text().endswith("{0:7}}}")
    assert (tmp_path / "restored" / "config" / "secret.key").stat().st_mode & 0o777 == 0o600
    with open_store(tmp_path / "restored", SETTINGS) as store:
        assert store.put_message(message(330)).is_ok


def test_beside_a_writer_each_backup_is_a_beginning_of_the_log(tmp_path: Path) -> None:
    root, saved = tmp_path / "store", tmp_path / "saved"
    with open_store(root, SETTINGS) as store:
        for number in range(150):
            assert store.put_message(message(number)).is_ok
            if number % 30 == 29:
                report = back_up(str(root), str(saved))
                assert report.end == store.max_phy_offset and not report.damage
        restore(str(saved), str(tmp_path / "restored"))
        assert keys(tmp_path / "restored") == [bytes(message(number).body) for number in range(150)]


def test_files_that_the_store_deleted_stay_until_prune(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    back_up(str(root), str(saved))
    log_file(root).unlink()
    fill(root, 200, 50)
    kept = back_up(str(root), str(saved))
    assert kept.start == 0
    restore(str(saved), str(tmp_path / "all"))
    assert len(keys(tmp_path / "all")) == 250
    pruned = back_up(str(root), str(saved), prune=True)
    assert pruned.start == SETTINGS["mappedFileSizeCommitLog"] and pruned.end == kept.end
    restore(str(saved), str(tmp_path / "rest"))
    assert keys(tmp_path / "rest") == keys(root)
    assert len(list((saved / "commitlog").iterdir())) == pruned.files


@pytest.mark.parametrize("change", ["another store", "repaired", "truncated", "gap"])
def test_another_log_is_refused_and_the_backup_stays(tmp_path: Path, change: str) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    back_up(str(root), str(saved))
    before = contents(saved)
    if change == "another store":
        root = fill(tmp_path / "other", 1, 220)
    elif change == "repaired":
        flip(log_file(root), 200)
    elif change == "truncated":
        root = fill(tmp_path / "shorter", 0, 100)
    else:
        fill(root, 200, 400)
        for number in range(3, -1, -1):
            log_file(root, number).unlink()
    with pytest.raises(ConfigError, match=r"the backup of another log|names? a new directory"):
        back_up(str(root), str(saved))
    after = contents(saved)
    assert {name: after[name] for name in before} == before
    back_up(str(root), str(saved), overwrite=True)
    restored = tmp_path / "restored"
    if change == "repaired":
        assert (saved / "commitlog" / log_file(root).name).read_bytes() == log_file(root).read_bytes()
    else:
        restore(str(saved), str(restored))
        assert keys(restored) == keys(root)


def test_damage_in_the_store_is_copied_and_named(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    flip(log_file(root), 120)
    report = back_up(str(root), str(tmp_path / "saved"))
    assert len(report.damage) == 1 and str(log_file(root)) in report.damage[0]


def test_a_damaged_backup_is_not_restored(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    back_up(str(root), str(saved))
    path = log_file(saved, 1)
    flip(path, 100)
    with pytest.raises(StoreError, match=rf"{path}: the backup is damaged: CRC"):
        restore(str(saved), str(tmp_path / "restored"))
    assert not (tmp_path / "restored").exists()
    flip(path, 100)
    os.truncate(path, 300)
    with pytest.raises(StoreError, match="bytes are missing"):
        restore(str(saved), str(tmp_path / "restored"))
    (saved / "backup.json").write_text('{"format":')
    with pytest.raises(ConfigError, match=r"backup\.json: "):
        restore(str(saved), str(tmp_path / "restored"))
    for evil in ('"name": "../../x"', '"name": "/etc/passwd"'):
        file = {"name": "N", "size": 1, "crc": 1, "seen": [1, 1]}
        found = {"format": "mqlake backup", "version": 1, "fileSize": 1, "config": "c", "savedAtMs": 1}
        text = json.dumps({**found, "settings": {}, "files": [file]})
        (saved / "backup.json").write_text(text.replace('"name": "N"', evil))
        with pytest.raises(ConfigError, match="not part of a backup"):
            read_manifest(str(saved))


def test_a_damaged_copy_is_found_by_a_run_in_its_turn_and_made_again(tmp_path: Path) -> None:
    """Disks rot where nobody reads: a backup that only appends would find out when it is needed."""
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    back_up(str(root), str(saved))
    count = len(list((saved / "commitlog").iterdir()))
    assert count >= 4
    for number in (1, 2):
        flip(log_file(saved, number), 100)
    runs = [back_up(str(root), str(saved)) for _ in range(count)]
    assert sorted(text.partition(":")[0] for run in runs for text in run.mended) == [
        str(log_file(saved, number)) for number in (1, 2)
    ]
    assert all(run.checked_bytes <= 16384 and not run.damaged_copies for run in runs)
    assert verify_backup(str(saved)).ok and same_after_restore(root, saved, tmp_path / "again")


@pytest.mark.parametrize("how", ["flip", "truncate", "delete"])
@pytest.mark.parametrize("number", [0, -1])
def test_verify_reads_all(tmp_path: Path, how: str, number: int) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    back_up(str(root), str(saved))
    path = log_file(saved, number)
    if how == "flip":
        flip(path, 100)
    elif how == "truncate":
        os.truncate(path, path.stat().st_size - 10)
    else:
        path.unlink()
    (damage,) = verify_backup(str(saved)).damage
    assert damage.startswith(f"{path}: ")
    report = back_up(str(root), str(saved), verify=True)
    assert report.mended == [damage] and report.checked_bytes == report.end
    assert verify_backup(str(saved)).ok and same_after_restore(root, saved, tmp_path / "again")


def test_a_damaged_copy_without_its_original_is_told_each_time(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    back_up(str(root), str(saved))
    log_file(root).unlink()
    path = log_file(saved)
    flip(path, 100)
    back_up(str(root), str(saved), verify=True)
    assert [len(back_up(str(root), str(saved)).damaged_copies) for _ in range(3)] == [1, 1, 1]
    assert [text.partition(":")[0] for text in verify_backup(str(saved)).damage] == [str(path)]


def test_the_configuration_is_compared_too(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    (root / "config" / "auth").mkdir(parents=True, exist_ok=True)
    (root / "config" / "auth" / "users.json").write_text('{"a": 1}')
    back_up(str(root), str(saved))
    path = saved / "config-1" / "auth" / "users.json"
    flip(path, 3)
    assert [text.partition(":")[0] for text in verify_backup(str(saved)).damage] == [str(path)]
    with pytest.raises(StoreError, match=rf"the backup is damaged: {path}: CRC"):
        restore(str(saved), str(tmp_path / "restored"))
    back_up(str(root), str(saved))
    assert verify_backup(str(saved)).ok


def test_a_backup_of_before_checksums_of_the_configuration_is_read(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    back_up(str(root), str(saved))
    found = json.loads((saved / "backup.json").read_text())
    del found["configCrcs"]
    for each in found["files"]:
        del each["checked"]
    (saved / "backup.json").write_text(json.dumps(found))
    assert verify_backup(str(saved)).ok and same_after_restore(root, saved, tmp_path / "again")
    assert not back_up(str(root), str(saved)).mended


def same_after_restore(root: Path, saved: Path, again: Path) -> bool:
    restore(str(saved), str(again))
    return same(root, again)


def test_where_a_backup_and_a_store_may_go(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("dear")
    places = {"full": "not a backup", "store/saved": "is in the store", "full/letter.txt": "directory"}
    for where, why in places.items():
        with pytest.raises(ConfigError, match=why):
            back_up(str(root), str(tmp_path / where))
    with pytest.raises(ConfigError, match="no whole backup"):
        restore(str(tmp_path / "full"), str(tmp_path / "new"))
    with pytest.raises(ConfigError, match=r"letter\.txt: a backup is a directory"):
        restore(str(tmp_path / "full" / "letter.txt"), str(tmp_path / "new"))
    back_up(str(root), str(saved))
    with pytest.raises(ConfigError, match="is not empty"):
        restore(str(saved), str(tmp_path / "full"))
    with module._locked(str(saved)), pytest.raises(ConfigError, match="another backup is writing"):
        back_up(str(root), str(saved))


def test_a_full_disk_is_named_and_the_next_run_goes_on(tmp_path: Path) -> None:
    root, saved = fill(tmp_path / "store"), tmp_path / "saved"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))  # as if there were no more room
    try:
        with pytest.raises(OSError) as error:
            back_up(str(root), str(saved))
        assert error.value.filename == str(saved / "commitlog" / log_file(root).name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    back_up(str(root), str(saved))
    target = tmp_path / "restored"
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(OSError) as error:
            restore(str(saved), str(target))
        assert str(error.value.filename).startswith(f"{target}.restoring/commitlog/")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not target.exists()
    restore(str(saved), str(target))
    assert same(root, target)


KILLED = """
import os, signal, sys
from mqlake.store.backup import back_up
number, calls = int(sys.argv[3]), 0
def armed(name):
    real = getattr(os, name)
    def call(*arguments, **options):
        global calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    setattr(os, name, call)
for name in ("pwrite", "fsync", "replace", "ftruncate", "mkdir", "unlink"):
    armed(name)
while True:  # forked for each point: the imports are paid once
    number += 1
    calls = 0
    child = os.fork()
    if not child:
        back_up(sys.argv[1], f"{sys.argv[2]}-{number}")
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(number, status, flush=True)
    if not status:
        break
"""


def test_killed_at_every_call_the_backup_before_stays_and_the_next_goes_on(tmp_path: Path) -> None:
    root = fill(tmp_path / "store")
    back_up(str(root), str(tmp_path / "saved"))
    fill(root, 200, 60)
    points = 40
    for number in range(points):
        shutil.copytree(tmp_path / "saved", tmp_path / f"saved-{number}")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(root), str(tmp_path / "saved"), "0"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    outcomes = [line.split() for line in done.stdout.splitlines()]
    assert outcomes[-1][1] == "0" and len(outcomes) < points, done.stderr
    assert {status for _, status in outcomes[:-1]} == {str(int(signal.SIGKILL))}
    for number, _ in outcomes[::8] + outcomes[4:5] + outcomes[-1:]:
        saved = tmp_path / f"saved-{number}"
        manifest = read_manifest(str(saved))
        assert manifest is not None
        for each in manifest.files:
            data = (saved / "commitlog" / each.name).read_bytes()[: each.size]
            assert zlib.crc32(data) == each.crc
        assert (saved / manifest.config).is_dir()
        back_up(str(root), str(saved))
    restore(str(tmp_path / f"saved-{outcomes[4][0]}"), str(tmp_path / "restored"))
    assert same(root, tmp_path / "restored")
