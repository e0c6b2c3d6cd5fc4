import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base.config_file import ConfigFile
from mqlake.errors import StoreCorruptError

FIRST = {"offsetTable": {"T@G": {0: 12, 1: 7}}}
SECOND = {"offsetTable": {"T@G": {0: 13, 1: 9}}}
THIRD = {"offsetTable": {"T@G": {0: 14}, "U@G": {3: 1}}}

# What persist asks of the operating system, in the order of its steps.
CALLS = ("open", "fsync", "replace")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "config" / "consumerOffset.json")


def content(path):
    with open(path, "rb") as file:
        return file.read()


def test_nothing_there(path):
    assert ConfigFile(path).load() is None


def test_persist_keeps_the_last_content_as_backup(path):
    file = ConfigFile(path)
    assert file.persist(FIRST) is True
    assert not os.path.exists(f"{path}.bak")
    first = content(path)
    assert file.persist(SECOND) is True
    assert content(f"{path}.bak") == first
    assert ConfigFile(path).load() == SECOND
    assert sorted(os.listdir(os.path.dirname(path))) == ["consumerOffset.json", "consumerOffset.json.bak"]


def test_unchanged_content_is_not_written_again(path):
    file = ConfigFile(path)
    file.persist(FIRST)
    before = os.stat(path)
    assert file.persist(FIRST) is False
    assert os.stat(path) == before
    os.unlink(path)
    assert file.persist(FIRST) is True


@pytest.mark.parametrize(
    "damage", [None, b"", b"  \n", b'{"offsetTable":{"T@G":{0:1', b"\xff\xfe", b"\0" * 100]
)
def test_the_backup_serves_when_the_file_cannot(path, damage):
    file = ConfigFile(path)
    file.persist(FIRST)
    file.persist(SECOND)
    if damage is None:
        os.unlink(path)
    else:
        with open(path, "wb") as target:
            target.write(damage)
    again = ConfigFile(path)
    assert again.load() == FIRST
    backup = content(f"{path}.bak")
    again.persist(THIRD)
    assert ConfigFile(path).load() == THIRD
    assert content(f"{path}.bak") == backup


def test_persist_without_load_does_not_back_up_damage(path):
    file = ConfigFile(path)
    file.persist(FIRST)
    file.persist(SECOND)
    with open(path, "wb") as target:
        target.write(b"{broken")
    ConfigFile(path).persist(THIRD)
    os.unlink(path)
    assert ConfigFile(path).load() == FIRST


def test_damage_without_a_backup_is_an_error(path):
    os.makedirs(os.path.dirname(path))
    with open(path, "wb") as target:
        target.write(b'{"a":1,"b"}')
    with pytest.raises(StoreCorruptError, match=r"consumerOffset.json: corrupt at byte"):
        ConfigFile(path).load()
    with open(f"{path}.bak", "wb") as target:
        target.write(b"\xff")
    with pytest.raises(StoreCorruptError, match=r"consumerOffset.json: corrupt at byte"):
        ConfigFile(path).load()


def fail_at(monkeypatch, wanted):
    """Lets the `wanted`-th call raise, before or after its effect; returns the list of calls made."""
    made = []

    def wrap(name, real):
        def call(*args, **kwargs):
            made.append(name)
            if len(made) == wanted[0]:
                if wanted[1] == "after":
                    real(*args, **kwargs)
                raise KeyboardInterrupt(f"killed {wanted[1]} {name}")
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, wrap(name, getattr(os, name)))
    return made


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("loaded", [False, True])
def test_killed_at_any_call_the_old_or_the_new_content_is_there(tmp_path, monkeypatch, when, loaded):
    step = 0
    finished = False
    while not finished:
        step += 1
        path = str(tmp_path / str(step) / "topics.json")
        ConfigFile(path).persist(FIRST)
        file = ConfigFile(path)
        if loaded:
            file.load()
        file.persist(SECOND)
        with monkeypatch.context() as patch:
            made = fail_at(patch, (step, when))
            try:
                file.persist(THIRD)
            except KeyboardInterrupt:
                pass
            finished = len(made) < step
        after = ConfigFile(path).load()
        assert after == THIRD if finished else after in (SECOND, THIRD)
        # The backup alone is whole as well, and a later persist works.
        os.unlink(path)
        assert ConfigFile(path).load() in (FIRST, SECOND)
        ConfigFile(path).persist(THIRD)
        assert ConfigFile(path).load() == THIRD
    assert step > 8


def test_killed_while_it_writes_the_temporary_file(path):
    file = ConfigFile(path)
    file.persist(FIRST)
    with open(f"{path}.tmp", "wb") as half:
        half.write(b'{"offsetTa')
    assert ConfigFile(path).load() == FIRST
    assert file.persist(SECOND)
    assert ConfigFile(path).load() == SECOND


def test_an_io_error_is_raised_and_the_next_persist_writes_again(path, monkeypatch):
    file = ConfigFile(path)
    file.persist(FIRST)

    def fail(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="No space left"):
            file.persist(SECOND)
    assert ConfigFile(path).load() == FIRST
    assert file.persist(SECOND) is True
    assert ConfigFile(path).load() == SECOND


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)


@given(st.dictionaries(KEYS, st.one_of(st.integers(-(2**63), 2**63 - 1), KEYS, st.booleans()), max_size=5))
def test_round_trip(tmp_path_factory, value):
    path = str(tmp_path_factory.mktemp("config") / "a.json")
    ConfigFile(path).persist(value)
    assert ConfigFile(path).load() == value
