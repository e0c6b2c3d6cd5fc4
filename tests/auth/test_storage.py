"""storage: users and acls survive, sealed; damage is named by file and line; a crash leaves the old or the new."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given

from mqlake.auth import storage as module
from mqlake.auth.model import Acl, Action, Pattern, Policy, PolicyEntry, Resource, ResourceType, User
from mqlake.auth.state import State
from mqlake.auth.storage import Storage, encode
from mqlake.errors import ConfigError
from tests.auth.people import POLICIES, USERS, entry, state


def test_what_is_written_is_read(tmp_path: Path) -> None:
    made = state(entry("Topic:T", Action.PUB))
    Storage(str(tmp_path / "config")).write(made)
    assert Storage(str(tmp_path / "config")).load() == made


@given(USERS, POLICIES)
def test_in_clear_there_and_back(user: User, policies: tuple[Policy, ...]) -> None:
    made = State({user.name: user}, {user.name: Acl(user.name, policies)})
    lines = encode(made, None).decode().split("\n")[:-1]
    assert Storage("nowhere")._parse(lines) == made


def test_names_may_have_what_ends_lines_elsewhere(tmp_path: Path) -> None:
    user = User("a\u2028b\x85c\x0b\n", "x")
    Storage(str(tmp_path)).write(State({user.name: user}))
    assert Storage(str(tmp_path)).load().users == {user.name: user}


def test_what_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / module.FILE_NAME).write_bytes(encode(state(), None) + b"\xff\n")
    with pytest.raises(ConfigError, match=r"accessControl\.jsonl:4: this is not UTF-8"):
        Storage(str(tmp_path)).load()


def test_secrets_are_sealed_and_the_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    os.umask(0o022)
    Storage(str(tmp_path)).write(state())
    content = (tmp_path / module.FILE_NAME).read_bytes()
    assert b"alice-secret" not in content and b"sealed:" in content
    for name in (module.FILE_NAME, module.KEY_NAME):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    again = Storage(str(tmp_path))
    again.write(again.load())
    assert (tmp_path / module.FILE_NAME).read_bytes() != content  # another nonce for each write


def test_a_password_in_clear_is_read_and_sealed_with_the_next_write(tmp_path: Path) -> None:
    (tmp_path / module.FILE_NAME).write_bytes(encode(state(), None))
    storage = Storage(str(tmp_path))
    loaded = storage.load()
    assert loaded == state()
    storage.write(loaded)
    assert b"alice-secret" not in (tmp_path / module.FILE_NAME).read_bytes()


@pytest.mark.parametrize(
    ("line", "text", "why"),
    [
        (1, "{}", "is needed here"),
        (1, '{"format":"mqlake access control","version":2}', "is needed here"),
        (2, "{not json", "property name"),
        (2, "[]", "no attribute|is needed"),
        (3, '{"user":{"username":"x"}}', "password can not be blank"),
        (3, '{"user":{"username":"x","password":"y","userType":9}}', "userType: 9 is not one of"),
        (3, '{"role":{}}', "is needed here"),
        (4, '{"acl":{"subject":{"username":"stranger"},"policies":[]}}', "no user stranger above"),
        (4, '{"acl":{"subject":{"username":"alice"},"policies":[{"entries":[{}]}]}}', "needs a resource"),
    ],
)
def test_damage_is_named_by_file_and_line(tmp_path: Path, line: int, text: str, why: str) -> None:
    lines = encode(state(entry("Topic:T", Action.PUB)), None).decode().splitlines()
    lines[line - 1] = text
    path = tmp_path / module.FILE_NAME
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    with pytest.raises(ConfigError, match=why) as raised:
        Storage(str(tmp_path)).load()
    assert str(raised.value).startswith(f"{path}:{line}:")


@pytest.mark.parametrize("end", range(0, 40, 3))
def test_a_file_that_was_cut_is_refused_or_has_whole_lines(tmp_path: Path, end: int) -> None:
    content = encode(state(entry("Topic:T", Action.PUB)), None)
    path = tmp_path / module.FILE_NAME
    path.write_bytes(content[: len(content) * end // 40])
    try:
        loaded = Storage(str(tmp_path)).load()
    except ConfigError as error:
        assert f"{path}:" in str(error)
    else:
        assert loaded.users.items() <= state().users.items()


def test_a_password_moved_to_another_user_is_noticed(tmp_path: Path) -> None:
    Storage(str(tmp_path)).write(state())
    path = tmp_path / module.FILE_NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["user"]["password"] = lines[2]["user"]["password"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(ConfigError, match=":2: the password of admin was not sealed with this"):
        Storage(str(tmp_path)).load()


def test_a_key_that_is_missing_open_or_damaged_is_refused(tmp_path: Path) -> None:
    Storage(str(tmp_path)).write(state())
    key = tmp_path / module.KEY_NAME
    good = key.read_bytes()
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        Storage(str(tmp_path)).load()
    key.chmod(0o600)
    key.write_bytes(b"short")
    with pytest.raises(ConfigError, match=f"{module.KEY_NAME}:1:"):
        Storage(str(tmp_path)).load()
    key.unlink()
    with pytest.raises(ConfigError, match="is missing"):
        Storage(str(tmp_path)).load()
    key.write_bytes(good)
    key.chmod(0o600)
    assert Storage(str(tmp_path)).load() == state()


def test_users_of_java_in_rocksdb_are_not_taken_for_no_users(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "CURRENT").write_text("MANIFEST-000004\n")
    with pytest.raises(ConfigError, match="mqlake admin user export"):
        Storage(str(tmp_path)).load()


@pytest.mark.parametrize("call", ["open", "fsync", "replace"])
def test_a_crash_at_any_point_leaves_the_old_or_the_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Each call of the write in turn is the last one."""
    old, new = state(), state(entry("Topic:T", Action.PUB))
    real = getattr(os, call)
    for last in range(1, 5):
        directory = tmp_path / f"{call}{last}"
        Storage(str(directory)).write(old)
        calls = 0

        def dies(*args: object, _last: int = last, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls >= _last:
                raise KeyboardInterrupt
            return real(*args, **options)

        storage = Storage(str(directory))
        storage.load()
        monkeypatch.setattr(os, call, dies)
        try:
            storage.write(new)
        except KeyboardInterrupt:
            pass
        finally:
            monkeypatch.setattr(os, call, real)
        assert Storage(str(directory)).load() in (old, new)


def test_what_the_next_start_could_not_read_is_not_written(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    storage.write(state())
    unreadable = Resource(ResourceType.TOPIC, "", Pattern.LITERAL)
    with pytest.raises(ConfigError, match="a name is needed"):
        storage.write(state(PolicyEntry(unreadable, frozenset({Action.PUB}))))
    assert Storage(str(tmp_path)).load() == state()


def test_a_full_disk_keeps_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path))
    storage.write(state())

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(OSError):
            storage.write(state(entry("Topic:T", Action.PUB)))
    assert Storage(str(tmp_path)).load() == state()
