import os
import subprocess
import sys
import textwrap

import pytest

from mqlake.errors import StoreLockedError
from mqlake.store.files.store_lock import AbortFile, LastWriter, StoreLock, lock_holder

HOLDER = textwrap.dedent(
    """
    import sys
    from mqlake.store.files.store_lock import StoreLock
    lock = StoreLock(sys.argv[1])
    lock.acquire()
    print("held", flush=True)
    sys.stdin.read()
    """
)


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "lock")


@pytest.fixture
def other_process(path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_file_says_lock(path):
    with StoreLock(path) as lock:
        assert lock.is_held
        lock.acquire()
    assert not lock.is_held
    with open(path, "rb") as file:
        assert file.read() == b"lock"
    lock.release()


def test_another_process_is_named(path, other_process):
    assert lock_holder(path) == other_process.pid
    with pytest.raises(StoreLockedError, match=f"process {other_process.pid}"):
        StoreLock(path).acquire()


def test_the_lock_goes_with_the_process(path, other_process):
    other_process.kill()
    other_process.wait()
    assert lock_holder(path) is None
    with StoreLock(path) as lock:
        assert lock.is_held


def test_the_own_process_is_kept_out_and_does_not_lose_the_lock(path):
    check = f"from mqlake.store.files.store_lock import StoreLock; StoreLock({path!r}).acquire()"
    with StoreLock(path):
        with pytest.raises(StoreLockedError, match=rf"this process \({os.getpid()}\)"):
            StoreLock(path).acquire()
        assert lock_holder(path) == os.getpid()
        other = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
        assert f"process {os.getpid()}" in other.stderr
    assert lock_holder(path) is None
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.usefixtures("other_process")
def test_the_abort_file_names_a_holder_that_the_kernel_cannot(path, monkeypatch):
    abort_path = f"{path}.abort"
    AbortFile(abort_path).create()
    monkeypatch.setattr("mqlake.store.files.store_lock._holder_of", lambda *_: 0)
    with pytest.raises(StoreLockedError, match=str(os.getpid())):
        StoreLock(path, abort_path=abort_path).acquire()
    with pytest.raises(StoreLockedError, match="another process"):
        StoreLock(path).acquire()


def test_nobody_holds_a_missing_file(path):
    assert lock_holder(path) is None
    assert not os.path.exists(path)


def test_a_directory_that_cannot_be_written_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        StoreLock(str(tmp_path / "missing" / "lock")).acquire()


def test_abort_file(tmp_path):
    abort = AbortFile(str(tmp_path / "abort"))
    assert not abort.exists() and abort.pid() is None
    abort.create()
    assert abort.exists() and abort.pid() == os.getpid()
    assert (tmp_path / "abort").read_text() == str(os.getpid())
    abort.delete()
    abort.delete()
    assert os.listdir(tmp_path) == []


def test_an_abort_file_with_other_text_has_no_pid(tmp_path):
    (tmp_path / "abort").write_text("who knows")
    assert AbortFile(str(tmp_path / "abort")).pid() is None


def test_the_abort_file_says_whether_the_machine_has_been_up_since(tmp_path):
    abort = AbortFile(str(tmp_path / "abort"))
    with StoreLock(str(tmp_path / "lock")) as lock:
        abort.create(LastWriter.now(lock, "SYNC_FLUSH"))
        writer = abort.last_writer()
        assert (abort.pid(), writer.flush_disk_type) == (os.getpid(), "SYNC_FLUSH")
        assert writer.machine_stayed_up(lock)
        assert not LastWriter("another", writer.lock_file).machine_stayed_up(lock)
    with StoreLock(str(tmp_path / "lock of a copy")) as other:
        assert not writer.machine_stayed_up(other)


def test_of_an_abort_file_of_rocketmq_nothing_is_concluded(tmp_path):
    (tmp_path / "abort").write_text("4711")
    with StoreLock(str(tmp_path / "lock")) as lock:
        assert AbortFile(str(tmp_path / "abort")).last_writer() == LastWriter()
        assert not AbortFile(str(tmp_path / "abort")).last_writer().machine_stayed_up(lock)


def test_without_a_boot_id_nothing_is_concluded(tmp_path, monkeypatch):
    monkeypatch.setattr("mqlake.store.files.store_lock.BOOT_ID_PATH", str(tmp_path / "none"))
    with StoreLock(str(tmp_path / "lock")) as lock:
        assert not LastWriter.now(lock, "").machine_stayed_up(lock)
