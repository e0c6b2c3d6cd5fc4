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
from mqlake.remoting.connection import Connection, ProcessorTable
from mqlake.remoting.headers.access import (
    AclRequestHeader,
    DeleteAclRequestHeader,
    ListAclsRequestHeader,
    ListUsersRequestHeader,
    UserRequestHeader,
)


class AccessAdmin:
    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def register(self, table: ProcessorTable) -> None:
        code = RequestCode
        table.register(
            (code.AUTH_CREATE_USER, code.AUTH_UPDATE_USER, code.AUTH_DELETE_USER), self.change_user
        )
        table.register(code.AUTH_GET_USER, self.get_user)
        table.register(code.AUTH_LIST_USER, self.list_users)
        table.register((code.AUTH_CREATE_ACL, code.AUTH_UPDATE_ACL), self.update_acl)
        table.register(code.AUTH_DELETE_ACL, self.delete_acl)
        table.register(code.AUTH_GET_ACL, self.get_acl)
        table.register(code.AUTH_LIST_ACL, self.list_acls)

    # --- users

    async def change_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """3001, 3002, 3003."""
        name = request.decode_header(UserRequestHeader).username or ""
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

    def get_user(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """3004: UserInfo; no body if there is no such user."""
        name = request.decode_header(UserRequestHeader).username or ""
        if not name.strip():
            raise ResponseError(ResponseCode.INVALID_PARAMETER, "The username is blank")
        user = self._access.state.users.get(name)
        return _answer(None if user is None else self._info(user, request))

    def list_users(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """3005: a list of UserInfo, of those whose name contains `filter`; no body if there is none."""
        part = request.decode_header(ListUsersRequestHeader).filter or ""
        users = self._access.state.users.values()
        return _answer([self._info(user, request) for user in users if part in user.name])

    def _info(self, user: User, request: RemotingCommand) -> dict[str, Any]:
        return user_to_info(user, with_password=self._access.caller(request).is_super)

    # --- acls

    async def update_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """3006, 3007."""
        subject = request.decode_header(AclRequestHeader).subject
        info = _body(request)
        if not info.get("policies"):
            raise _system_error()
        policies = _legal(functools.partial(policies_from_info, info["policies"]))
        return await self._change(lambda before: state.update_acl(before, subject, policies))

    async def delete_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """3008."""
        header = request.decode_header(DeleteAclRequestHeader)
        resource = None
        if header.resource:
            resource = _legal(functools.partial(Resource.parse, header.resource))
        kind = PolicyType.of(header.policy_type)
        return await self._change(lambda before: state.delete_acl(before, header.subject, kind, resource))

    def get_acl(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """3009: AclInfo; no body if there is none."""
        subject = request.decode_header(AclRequestHeader).subject
        acl = self._access.state.acls.get(_legal(lambda: username_of(subject)))
        return _answer(None if acl is None else acl_to_info(acl))

    def list_acls(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """3010: a list of AclInfo; no body if there is none. With a filter for resources each acl has only the entries
        whose resource contains it."""
        header = request.decode_header(ListAclsRequestHeader)
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
