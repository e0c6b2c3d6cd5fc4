"""A store that is made from its archive: the same log and queues, and what is not there is said."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from mqlake.cli.main import cli
from mqlake.errors import ArchiveUnavailableError, ConfigError, StoreError
from mqlake.store.archive.manifest import read_manifest
from mqlake.store.archive.target import Target
from mqlake.store.archive_restore import restore_archive
from mqlake.store.message_store import open_store
from tests.store.archive.places import Place
from tests.store.archive.test_uploader import log_bytes, log_of, upload
from tests.store.small_store import QUEUES, SETTINGS, TOPICS, fill, message

COUNT = 310


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A store whose topics.json knows one topic of two, with a group's offsets."""
    root = fill(tmp_path / "old", count=COUNT)
    config = root / "config"
    config.mkdir(exist_ok=True)
    topics = {TOPICS[0]: {"topicName": TOPICS[0], "readQueueNums": 4, "writeQueueNums": 4}}
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}))
    (config / "consumerOffset.json").write_text('{"offsetTable": {"Orders@G": {"0": 7}}}')
    (config / "plain").mkdir()
    (config / "plain" / "acl.yml").write_text("secret")
    (config / "plain" / "acl.yml").chmod(0o600)
    return root


def bodies(root: Path, url: str, topic: str) -> list[bytes]:
    found: list[bytes] = []
    with open_store(root, {**SETTINGS, "archive": url}) as store:
        for queue_id in range(QUEUES):
            offset = store.min_offset_in_queue(topic, queue_id)
            while 0 <= offset < store.max_offset_in_queue(topic, queue_id):
                result = store.get_message("g", topic, queue_id, offset, 32)
                found += [m.body for m in result.messages()]
                offset = result.next_begin_offset
    return found


def test_it_is_the_old_store_and_goes_on(old: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    upload(old, Target(url))
    report = restore_archive(url, str(tmp_path / "new"))
    new = tmp_path / "new"
    files = log_of(old)
    end, begin = files.max_wrote_position, files.mapped_files[-1].file_from_offset
    files.close()
    assert (report.begin, report.log_begin, report.end) == (0, begin, end)
    assert log_bytes(new)[: end - begin] == log_bytes(old)[begin:end]
    for name in ("topics.json", "consumerOffset.json", "plain/acl.yml"):
        assert (new / "config" / name).read_bytes() == (old / "config" / name).read_bytes()
    assert (new / "config" / "plain" / "acl.yml").stat().st_mode & 0o777 == 0o600
    wanted = [
        message(n).body for q in range(QUEUES) for n in range(COUNT) if n % 2 == 0 and n // 2 % QUEUES == q
    ]
    assert bodies(new, url, TOPICS[0]) == wanted
    with open_store(new, {**SETTINGS, "archive": url}) as store:
        assert store.query_message(TOPICS[0], "key-0", 1).buffers  # by key, in the archive
        result = store.put_message(message(COUNT))
        assert result.append_result is not None and result.append_result.wrote_offset == end
        assert result.append_result.logics_offset == sum(n % 4 == COUNT % 4 for n in range(COUNT))
    # a topic that was deleted does not come back with messages of long ago
    assert not (new / "consumequeue" / TOPICS[1]).exists()


def test_an_archive_that_ends_with_a_whole_file(old: Path, tmp_path: Path) -> None:
    """As `store offload` leaves it: the log goes on in a new file."""
    url = f"file://{tmp_path}/archive"
    upload(old, Target(url), lambda files: files.mapped_files[-1].file_from_offset)
    report = restore_archive(url, str(tmp_path / "new"))
    assert report.log_begin == report.end and report.end % 16384 == 0
    with open_store(tmp_path / "new", {**SETTINGS, "archive": url}) as store:
        result = store.put_message(message(0)).append_result
        assert result is not None and result.wrote_offset == report.end
    assert len(bodies(tmp_path / "new", url, TOPICS[0])) > 50


def test_a_death_on_the_way_leaves_nothing_that_looks_like_a_store(old: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"
    upload(old, Target(url))
    place = Place(url)
    manifest = read_manifest(place)
    assert manifest is not None
    new = tmp_path / "new"
    for each in (manifest.objects[-1].name, manifest.objects[0].units, manifest.config):
        name = each if isinstance(each, str) else each and each.name
        assert name
        data = Target(url).read(name)
        Target(url).replace(name, data[:-1])  # as when it is cut short
        with pytest.raises((StoreError, ArchiveUnavailableError)):
            restore_archive(url, str(new))
        assert not new.exists()
        Target(url).replace(name, data)
    restore_archive(url, str(new))
    assert not Path(f"{new}.restoring").exists()


def test_lost_queues_are_made_again_with_what_only_the_archive_has(old: Path, tmp_path: Path) -> None:
    """As after Java's broker, which deletes what points before its log."""
    url = f"file://{tmp_path}/archive"
    upload(old, Target(url))
    wanted = bodies(old, url, TOPICS[0])
    for path in sorted((old / "commitlog").iterdir())[:-2]:
        path.unlink()
    assert bodies(old, url, TOPICS[0]) == wanted
    shutil.rmtree(old / "consumequeue" / TOPICS[0])
    assert len(bodies(old, url, TOPICS[0])) < len(wanted)
    done = CliRunner().invoke(cli, ["store", "archive", "queues", url, str(old)])
    assert done.exit_code == 0 and "go back to physical offset 0" in done.output
    assert bodies(old, url, TOPICS[0]) == wanted
    with open_store(old, {**SETTINGS, "archive": url}) as store:
        assert store.query_message(TOPICS[0], "key-0", 1).buffers


def test_what_cannot_be_is_said(old: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no archive"):
        restore_archive(f"file://{tmp_path}/nowhere", str(tmp_path / "new"))
    url = f"file://{tmp_path}/archive"
    upload(old, Target(url))
    with pytest.raises(ConfigError, match="is not empty"):
        restore_archive(url, str(old))


def test_the_commands(old: Path, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/archive"

    def run(*arguments: str, exit_code: int = 0) -> str:
        done = CliRunner().invoke(cli, ["store", *arguments])
        assert done.exit_code == exit_code, done.output
        return done.output

    run("offload", str(old), url)
    assert "archive" in run("archive", "info", url)
    assert json.loads(run("archive", "verify", url, "--read", "--json"))["troubles"] == []
    said = run("restore", "--from", url, "--store", str(tmp_path / "new"))
    assert "ready for a broker with archive=" in said and "lost with the old machine" in said
    assert "name a BACKUP" in run("restore", "--to", str(tmp_path / "other"), exit_code=2)
    shutil.rmtree(tmp_path / "archive" / "units")
    assert "is gone" in run("archive", "verify", url, exit_code=1)
    assert "is made again" in run("archive", "repair", url)
    run("archive", "verify", url, "--read")


def test_the_broker_that_writes_the_archive_may_go_on(
    old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes another config, and deletes the one of the manifest that was just read."""
    url = f"file://{tmp_path}/archive"
    upload(old, Target(url))
    offsets = '{"offsetTable": {"Orders@G": {"0": 9}}}'
    asked: list[str] = []
    read = Target.read

    def read_late(target: Target, name: str, start: int = 0, end: int | None = None) -> bytes:
        if name.startswith("config/") and not asked:
            asked.append(name)
            (old / "config" / "consumerOffset.json").write_text(offsets)
            upload(old, Target(url))
        return read(target, name, start, end)

    monkeypatch.setattr(Target, "read", read_late)
    restore_archive(url, str(tmp_path / "new"))
    assert asked and not (tmp_path / "archive" / asked[0]).exists()
    assert (tmp_path / "new" / "config" / "consumerOffset.json").read_text() == offsets
