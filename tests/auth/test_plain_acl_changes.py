"""plain_acl_changes: what is changed and nothing else, and never into something that cannot be read."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.auth import plain_acl_changes as changes
from mqlake.auth.plain_acl import Account, read_files
from mqlake.errors import ConfigError
from tests.auth.test_plain_acl import EXAMPLE

NEW = {"accessKey": "orders-1", "secretKey": "0123456"}


def directory(tmp_path: Path) -> str:
    (tmp_path / "plain_acl.yml").write_text(EXAMPLE)
    return str(tmp_path)


def account(where: str, key: str) -> Account:
    return read_files(where).accounts[key]


def test_an_account_is_made_and_changed_by_what_is_given(tmp_path: Path) -> None:
    where = directory(tmp_path)
    before = read_files(where).accounts.keys()
    changes.change_account(
        where, {**NEW, "topicPerms": "a=PUB, b = SUB|PUB", "whiteRemoteAddress": "10.0.0.*"}
    )
    changes.change_account(where, {**NEW, "groupPerms": "g=SUB", "admin": "TRUE"})
    made = account(where, "orders-1")
    assert made.secret_key == "0123456", "no number"
    assert (made.is_admin, made.white_text, sorted(made.topics), sorted(made.groups)) == (
        True,
        "10.0.0.*",
        ["a", "b"],
        ["g"],
    )
    changes.change_account(where, {**NEW, "topicPerms": "", "whiteRemoteAddress": ""})
    assert account(where, "orders-1").topics == {} and not account(where, "orders-1").is_white("10.0.0.1")
    assert read_files(where).accounts.keys() == before | {"orders-1"}
    assert changes.version_of(str(tmp_path / "plain_acl.yml"))["counter"] == 3
    assert stat.S_IMODE((tmp_path / "plain_acl.yml").stat().st_mode) == 0o600
    changes.delete_account(where, "orders-1")
    assert read_files(where).accounts.keys() == before


def test_an_account_is_changed_in_the_file_that_has_it(tmp_path: Path) -> None:
    where = directory(tmp_path)
    (tmp_path / "acl").mkdir()
    other = tmp_path / "acl" / "team.yaml"
    other.write_text("accounts:\n- {accessKey: team-one, secretKey: team-secret}\n")
    changes.change_account(where, {"accessKey": "team-one", "secretKey": "other-secret"})
    assert (tmp_path / "plain_acl.yml").read_text() == EXAMPLE
    assert account(where, "team-one").secret_key == "other-secret"
    changes.change_white(where, "192.168.7.7", str(other))
    assert read_files(where).white_texts == ("10.10.103.*", "192.168.0.*", "192.168.7.7")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"secretKey": "long-enough"}, "accessKey=null"),
        ({"accessKey": "orders-1"}, "secretKey=null"),
        ({**NEW, "secretKey": "short"}, r"secretKey=\*+ cannot"),
        ({**NEW, "topicPerms": "a"}, "format error for a"),
        ({**NEW, "groupPerms": "a=FLY"}, "permission error for a=FLY"),
        ({**NEW, "whiteRemoteAddress": "1.2.{3"}, "not an address pattern"),
    ],
)
def test_what_cannot_be_changes_nothing(tmp_path: Path, fields: dict[str, str], why: str) -> None:
    where = directory(tmp_path)
    with pytest.raises(ConfigError, match=why):
        changes.change_account(where, fields)
    with pytest.raises(ConfigError, match="not an address pattern"):
        changes.change_white(where, "10.0.0.1,1.2.{3")
    with pytest.raises(ConfigError, match="nobody-1"):
        changes.delete_account(where, "nobody-1")
    with pytest.raises(ConfigError, match="updated failed"):
        changes.change_white(where, "10.0.0.1", "/etc/passwd")
    assert (tmp_path / "plain_acl.yml").read_text() == EXAMPLE


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=12)


@given(
    st.text("abc:#'\"{}[]|>&*!%@` \u00fc-,?01", min_size=7, max_size=14).filter(
        lambda key: key == key.strip()
    ),
    TEXTS,
)
def test_any_key_and_secret_come_back_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, key: str, secret: str
) -> None:
    where = str(tmp_path_factory.mktemp("acl"))
    secret = f"x{secret}secret"
    changes.change_account(where, {"accessKey": key, "secretKey": secret})
    changes.change_account(where, NEW)
    assert account(where, key).secret_key == secret
