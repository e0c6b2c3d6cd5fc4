"""AccessAPI: users and acls of a broker (3001 to 3010)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from mqlake.auth.model import (
    Acl,
    Policy,
    PolicyType,
    Resource,
    User,
    UserStatus,
    UserType,
    acl_to_info,
    policies_from_info,
    username_of,
)
from mqlake.client.api.calls import ServerCalls
from mqlake.remoting.bodies.codec import load_json
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.headers import access as headers
from mqlake.remoting.headers.codec import CommandHeader


class AccessAPI(ServerCalls):
    async def create_user(
        self, address: str, name: str, password: str, type_: UserType | None, status: UserStatus | None = None
    ) -> None:
        await self._change_user(RequestCode.AUTH_CREATE_USER, address, name, password, type_, status)

    async def update_user(
        self,
        address: str,
        name: str,
        password: str | None = None,
        type_: UserType | None = None,
        status: UserStatus | None = None,
    ) -> None:
        """Changes a user; what is None stays."""
        await self._change_user(RequestCode.AUTH_UPDATE_USER, address, name, password, type_, status)

    async def _change_user(
        self,
        code: int,
        address: str,
        name: str,
        password: str | None,
        type_: UserType | None,
        status: UserStatus | None,
    ) -> None:
        info = {
            "username": name,
            "password": password,
            "userType": None if type_ is None else type_.text,
            "userStatus": None if status is None else status.text,
        }
        body = json.dumps({key: value for key, value in info.items() if value is not None}).encode()
        await self._call(address, code, headers.UserRequestHeader(username=name), body)

    async def delete_user(self, address: str, name: str) -> None:
        """With the user's acl."""
        await self._call(address, RequestCode.AUTH_DELETE_USER, headers.UserRequestHeader(username=name))

    async def get_user(self, address: str, name: str) -> User | None:
        header = headers.UserRequestHeader(username=name)
        found = await self._value(address, RequestCode.AUTH_GET_USER, header)
        return _user(found) if found else None

    async def list_users(self, address: str, part: str = "") -> list[User]:
        """Returns the users whose name contains `part`, by name. Their password is empty if the broker does not give
        it."""
        header = headers.ListUsersRequestHeader(filter=part or None)
        found = await self._value(address, RequestCode.AUTH_LIST_USER, header) or []
        return sorted(map(_user, found), key=lambda user: user.name)

    async def update_acl(self, address: str, name: str, policies: Iterable[Policy]) -> None:
        """Entries for the same resource are replaced, others added."""
        acl = Acl(name, tuple(policies))
        header = headers.AclRequestHeader(subject=acl.subject)
        known = await self.get_acl(address, name)
        code = RequestCode.AUTH_CREATE_ACL if known is None else RequestCode.AUTH_UPDATE_ACL
        await self._call(address, code, header, json.dumps(acl_to_info(acl)).encode())

    async def delete_acl(
        self, address: str, name: str, resource: Resource | None = None, type_: PolicyType | None = None
    ) -> None:
        """The entry for one resource, else the whole acl."""
        header = headers.DeleteAclRequestHeader(
            subject=Acl(name, ()).subject,
            policy_type=None if type_ is None else type_.text,
            resource=None if resource is None else resource.text,
        )
        await self._call(address, RequestCode.AUTH_DELETE_ACL, header)

    async def get_acl(self, address: str, name: str) -> Acl | None:
        header = headers.AclRequestHeader(subject=Acl(name, ()).subject)
        found = await self._value(address, RequestCode.AUTH_GET_ACL, header)
        return _acl(found) if found else None

    async def list_acls(self, address: str, subject: str = "", resource: str = "") -> list[Acl]:
        header = headers.ListAclsRequestHeader(
            subject_filter=subject or None, resource_filter=resource or None
        )
        found = await self._value(address, RequestCode.AUTH_LIST_ACL, header) or []
        return sorted(map(_acl, found), key=lambda acl: acl.username)

    async def _value(self, address: str, code: int, header: CommandHeader) -> Any:
        answer = await self._call(address, code, header)
        body = answer.body_bytes()
        return load_json(body) if body else None


def _user(info: dict[str, Any]) -> User:
    return User(
        str(info.get("username")),
        str(info.get("password") or ""),
        UserType.of(info.get("userType")) or UserType.NORMAL,
        UserStatus.of(info.get("userStatus")) or UserStatus.ENABLE,
    )


def _acl(info: dict[str, Any]) -> Acl:
    return Acl(username_of(info.get("subject")), policies_from_info(info.get("policies") or []))
