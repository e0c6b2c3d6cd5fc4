# ruff: noqa: RUF009 - the fields are declared by setting()
import dataclasses
import enum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.base.settings import (
    LONG_MAX,
    KnownKeys,
    Settings,
    UnusedKey,
    attributes_of,
    parse_assignments,
    setting,
    settings_of,
)
from mqlake.errors import ConfigError, UnknownKeyError


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kettle(Settings):
    volume: int = setting(1024, "How much fits.", unit="bytes", low=1, key="kettleVolume")
    boil_after: int = setting(0, "When it boils.", unit="ms", high=LONG_MAX)
    lid: bool = setting(True, "Whether it has one.", fixed=True)
    colour: Colour = setting(Colour.RED, "How it looks.")
    owner: str = setting("whoever is there", "Whose it is.", factory=lambda: "nobody")
    friends: tuple[str, ...] = ()


def test_what_is_known_of_each_key():
    known = settings_of(Kettle)
    assert list(known) == ["kettleVolume", "boilAfter", "lid", "colour", "owner"]
    assert [one.type_name for one in known.values()] == ["int", "long", "boolean", "RED | BLUE", "string"]
    assert [one.default_text for one in known.values()] == ["1024", "0", "true", "RED", "whoever is there"]
    assert [key for key, one in known.items() if one.fixed] == ["lid"]
    assert attributes_of(Kettle)["boilAfter"] == "boil_after"


def test_values_are_of_their_type_after_construction():
    kettle = Kettle(volume="2k", boil_after="5", lid="False", colour="BLUE", owner=" me ")  # type: ignore[arg-type]
    assert kettle == Kettle(volume=2048, boil_after=5, lid=False, colour=Colour.BLUE, owner="me")
    assert Kettle().owner == "nobody"
    assert kettle.to_mapping() == {
        "kettleVolume": 2048,
        "boilAfter": 5,
        "lid": False,
        "colour": "BLUE",
        "owner": "me",
    }


def test_what_is_said_of_keys_is_the_callers_own():
    settings_of(Kettle).clear()
    attributes_of(Kettle).clear()
    assert Kettle().replaced({"lid": "false"}).to_mapping()["lid"] is False
    assert list(settings_of(Kettle)) == list(attributes_of(Kettle)) != []


def test_keys_of_others_are_passed_over():
    assert Kettle().replaced({"lid": "false", "listenPort": "1"}) == Kettle(lid=False)


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("volume", "0", "kettleVolume=0: 1 to 2147483647 is allowed"),
        ("volume", "much", "64k, 16m and 1g are understood"),
        ("boil_after", "1k", "boilAfter=1k ms: a whole number is needed"),
        ("boil_after", True, "boilAfter=true ms: a whole number is needed"),
        ("lid", "on", "lid=on: true or false is needed"),
        ("colour", "GREEN", "colour=GREEN: RED or BLUE is needed"),
        ("owner", 7, "owner=7: text is needed"),
    ],
)
def test_a_value_that_cannot_be_used_says_what_can(attribute, value, says):
    with pytest.raises(ConfigError) as raised:
        Kettle(**{attribute: value})
    assert says in str(raised.value)


UNUSED = {
    key: UnusedKey(key=key, default=default, why="it is only a kettle", refused=refused)
    for key, default, refused in (("whistle", False, True), ("stove", None, True), ("brand", "none", False))
}
KEYS = KnownKeys(settings_of(Kettle), UNUSED)


def test_a_key_that_must_not_be_ignored_may_have_its_default():
    for key, value in (("whistle", "False"), ("whistle", False), ("stove", " ")):
        UNUSED[key].check(value)
    for key, value, words in (
        ("whistle", "true", "whistle=true: only false is allowed; it is only a kettle"),
        ("whistle", "", "only false is allowed"),
        ("stove", "gas", "stove=gas: no value is allowed; it is only a kettle"),
    ):
        with pytest.raises(ConfigError, match=words):
            UNUSED[key].check(value)
    UNUSED["brand"].check("any")


@given(
    st.dictionaries(st.sampled_from([*settings_of(Kettle), *UNUSED, "kettleVolum", "x"]), st.just("false"))
)
def test_every_key_of_a_file_is_acted_on_or_reported_or_refused(mapping):
    unknown = [key for key in mapping if key in ("kettleVolum", "x")]
    if "stove" in mapping:
        with pytest.raises(ConfigError, match="stove"):
            KEYS.remarks(mapping)
        return
    remarks = KEYS.remarks(mapping)
    assert ("without effect here: brand" in remarks) is ("brand" in mapping)
    assert len(remarks) == ("brand" in mapping) + len(unknown)
    assert all(f"unknown configuration key '{key}'" in "".join(remarks) for key in unknown)
    if unknown:
        with pytest.raises(UnknownKeyError):
            KEYS.require(mapping)
    else:
        KEYS.require(mapping)


def test_assignments():
    assert parse_assignments(["a=b=c", "d = 1", "d=2"]) == {"a": "b=c", "d": "2"}
    for wrong in ("a", "=b", " =b"):
        with pytest.raises(ConfigError, match="key=value"):
            parse_assignments([wrong])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Radio(Settings):
    station: int = setting(0, "What it plays.", live=True)
    mute: bool = setting(False, "Whether it plays it.", live=True)
    voltage: int = setting(230, "What it needs.")


def test_only_live_settings_change_in_place_and_all_or_none():
    radio = Radio()
    radio.change({"mute": "true", "station": "2"})
    assert radio == Radio(mute=True, station=2)
    for wrong in (
        {"station": "3", "voltage": "110"},
        {"station": "3", "mute": "x"},
        {"station": "3", "dial": "1"},
    ):
        with pytest.raises(ConfigError):
            radio.change(wrong)
    assert radio == Radio(mute=True, station=2)
