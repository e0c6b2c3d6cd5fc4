"""What a slave makes of its master's lists of users and acls."""

from __future__ import annotations

import asyncio
from pathlib import Path

import orjson
import pytest
from hypothesis import given

from mqlake.auth.access import AccessControl
from mqlake.auth.config import AuthConfig
from mqlake.auth.model import Acl, Policy, User, acl_to_info, user_to_info
from mqlake.auth.requests import Context
from mqlake.auth.state import State
from mqlake.auth.storage import Storage
from mqlake.broker.services.slave_access import state_from_info, sync_access
from mqlake.errors import ConfigError
from mqlake.remoting.codes import RequestCode
from tests.auth.people import ADMIN, ALICE, POLICIES, USERS, state

ROOT = user_to_info(ADMIN, with_password=True)


@given(USERS, POLICIES)
def test_lists_give_the_state_that_they_were_made_of(user: User, policies: tuple[Policy, ...]) -> None:
    made = State({ADMIN.name: ADMIN, user.name: user}, {user.name: Acl(user.name, policies)})
    stranger = acl_to_info(Acl("nobody", policies))
    found = state_from_info(
        [user_to_info(user, with_password=True) for user in made.users.values()],
        [*(acl_to_info(acl) for acl in made.acls.values()), stranger],
    )
    assert found == made


@pytest.mark.parametrize(
    ("users", "words"),
    [
        ([], "no enabled super user"),
        ([user_to_info(ALICE, with_password=True)], "no enabled super user"),
        ([{**ROOT, "userStatus": "disable"}], "no enabled super user"),
        ([user_to_info(ADMIN, with_password=False)], "must be a super user there"),
        ([{**ROOT, "username": ""}], "without a name"),
    ],
)
def test_what_would_lock_everybody_out_is_refused(users: list[dict[str, str]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        state_from_info(users, [])


@pytest.mark.parametrize("acls", [b'{"a":1}', b"[1]", b"[{}]", b'[{"subject":"User:admin"}]'])
def test_an_answer_that_is_no_list_of_acls_changes_nothing(tmp_path: Path, acls: bytes) -> None:
    access = AccessControl(AuthConfig(), Storage(str(tmp_path)), Context("C"))
    before = access._state = state()

    async def ask(code: RequestCode) -> bytes:
        return orjson.dumps([ROOT]) if code is RequestCode.AUTH_LIST_USER else acls

    with pytest.raises(ConfigError):
        asyncio.run(sync_access(access, ask))
    assert access.state is before
