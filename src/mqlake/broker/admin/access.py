"""Users and acls, changed and listed by operators: codes 3001 to 3010.

A change is on disk before it is answered, and counts from then on. RocketMQ's broker gives passwords to everybody who
may list users; here only super users get them, for mqadmin's copyUser needs them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import orjson

from mqlake.auth import state
from mqlake.auth.access import AccessControl
from mqlake.auth.model import (
    Acl,
    IllegalError,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
    acl_to_info,
    policies_from_info,
    user_to_info,
    username_of,
)
from mqlake.auth.state import Change
from mqlake.errors import FormatError, ResponseError
from mqlake.remoting.bodies.codec import load_json
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.access import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)
from mqlake.remoting.processors import answers


class AccessAdmin:
    def __init__(self, access: AccessControl) -> None:
        self._access = access

    # --- users

    @answers((RequestCode.AUTH_CREATE_USER, RequestCode.AUTH_UPDATE_USER, RequestCode.AUTH_DELETE_USER))
    async def change_user(self, request: RemotingCommand, header: UserRequestHeader) -> RemotingCommand:
        """3001, 3002, 3003."""
        name = header.username or ""
        by = self._access.caller(request)
        if request.code == RequestCode.AUTH_DELETE_USER:
            return await self._change(lambda before: state.delete_user(before, name, by=by))
        if not name.strip():
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        info = _body(request)
        password = info.get("password")
        if not isinstance(password, str | None):
            raise _system_error()
        change = state.create_user if request.code == RequestCode.AUTH_CREATE_USER else state.update_user
        return await self._change(
            lambda before: change(
                before,
                name,
                password,
                UserType.of(info.get("userType")),
                UserStatus.of(info.get("userStatus")),
                by=by,
            )
        )

    @answers(RequestCode.AUTH_GET_USER)
    def get_user(self, request: RemotingCommand, header: UserRequestHeader) -> RemotingCommand:
        """3004: UserInfo; no body if there is no such user."""
        name = header.username or ""
        if not name.strip():
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._access.state.users.get(name)
        return _answer(None if user is None else self._info(user, request))

    @answers(RequestCode.AUTH_LIST_USER)
    def list_users(self, request: RemotingCommand, header: ListUsersRequestHeader) -> RemotingCommand:
        """3005: a list of UserInfo, of those whose name contains `filter`; no body if there is none."""
        part = header.filter or ""
        users = self._access.state.users.values()
        return _answer([self._info(user, request) for user in users if part in user.name])

    def _info(self, user: User, request: RemotingCommand) -> dict[str, Any]:
        return user_to_info(user, with_password=self._access.caller(request).is_super)

    # --- acls

    @answers((RequestCode.AUTH_CREATE_ACL, RequestCode.AUTH_UPDATE_ACL))
    async def update_acl(self, request: RemotingCommand, header: AclRequestHeader) -> RemotingCommand:
        """3006, 3007."""
        info = _body(request)
        if not info.get("policies"):
            raise _system_error()
        policies = _legal(functools.partial(policies_from_info, info["policies"]))
        return await self._change(lambda before: state.update_acl(before, header.subject, policies))

    @answers(RequestCode.AUTH_DELETE_ACL)
    async def delete_acl(self, header: DeleteAclRequestHeader) -> RemotingCommand:
        """3008."""
        resource = None
        if header.resource:
            resource = _legal(functools.partial(Resource.parse, header.resource))
        kind = PolicyType.of(header.policy_type)
        return await self._change(lambda before: state.delete_acl(before, header.subject, kind, resource))

    @answers(RequestCode.AUTH_GET_ACL)
    def get_acl(self, header: AclRequestHeader) -> RemotingCommand:
        """3009: AclInfo; no body if there is none."""
        acl = self._access.state.acls.get(_legal(lambda: username_of(header.subject)))
        return _answer(None if acl is None else acl_to_info(acl))

    @answers(RequestCode.AUTH_LIST_ACL)
    def list_acls(self, header: ListAclsRequestHeader) -> RemotingCommand:
        """3010: a list of AclInfo; no body if there is none. With a filter for resources each acl has only the entries
        whose resource contains it."""
        found = []
        for acl in self._access.state.acls.values():
            if (header.subject_filter or "") in acl.subject:
                found += _only(acl, header.resource_filter)
        return _answer(found)

    async def _change(self, change: Change) -> RemotingCommand:
        await self._access.change(change)
        return RemotingCommand.create_response()


def _only(acl: Acl, resource_filter: str | None) -> list[dict[str, Any]]:
    info = acl_to_info(acl)
    if resource_filter:
        for policy in info["policies"]:
            policy["entries"] = [entry for entry in policy["entries"] if resource_filter in entry["resource"]]
        info["policies"] = [policy for policy in info["policies"] if policy["entries"]]
    return [info] if info["policies"] else []


def _answer(info: Any) -> RemotingCommand:
    return RemotingCommand.create_response(body=orjson.dumps(info) if info else None)


def _legal(read: Any) -> Any:
    try:
        return read()
    except IllegalError as error:
        raise ResponseError(ResponseCode.NO_PERMISSION, str(error)) from None


def _body(request: RemotingCommand) -> Mapping[str, Any]:
    try:
        value = load_json(request.body_bytes())
    except FormatError:
        raise _system_error() from None
    if not isinstance(value, dict):
        raise _system_error()
    return value


def _system_error() -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, "An system error occurred, please try again later.")
