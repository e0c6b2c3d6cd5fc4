"""first_users: secrets are made once, shown once, and the file is for its owner alone."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from mqlake.auth.config import AuthConfig
from mqlake.auth.first_users import FILE_NAME, FIRST_USER, INNER_USER, FirstUsers
from mqlake.errors import ConfigError


def test_the_secret_of_admin_is_shown_once(tmp_path: Path) -> None:
    directory = tmp_path / "auth"
    first = FirstUsers(str(directory))
    config = AuthConfig().replaced(first.settings)
    assert [user.access_key for user in config.first_users()] == [FIRST_USER, INNER_USER]
    secret = first.secret_to_show()
    assert secret == config.first_users()[0].secret_key
    assert first.secret_to_show() is None
    assert stat.S_IMODE((directory / FILE_NAME).stat().st_mode) == 0o600
    assert secret not in (directory / FILE_NAME).read_text()
    again = FirstUsers(str(directory))
    assert again.secret_to_show() is None
    later = AuthConfig().replaced(again.settings)
    assert [user.access_key for user in later.first_users()] == [INNER_USER]
    assert later.inner_credentials == config.inner_credentials


def test_a_start_that_failed_shows_the_secret_at_the_next(tmp_path: Path) -> None:
    before = FirstUsers(str(tmp_path)).settings
    assert FirstUsers(str(tmp_path)).settings == before
    assert FirstUsers(str(tmp_path)).secret_to_show()


@pytest.mark.parametrize("content", ["", "[]", "{}", json.dumps({"admin": "x"})])
def test_a_damaged_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(ConfigError, match=FILE_NAME):
        FirstUsers(str(tmp_path))
