"""Headers of users and acls (3001 to 3010)."""

from __future__ import annotations

from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.common import RpcRequestHeader


class UserRequestHeader(RpcRequestHeader):
    """3001 AUTH_CREATE_USER, 3002 AUTH_UPDATE_USER, 3003 AUTH_DELETE_USER, 3004 AUTH_GET_USER."""

    username: str | None = None


class ListUsersRequestHeader(RpcRequestHeader):
    """3005 AUTH_LIST_USER."""

    filter: str | None = None


class AclRequestHeader(RpcRequestHeader):
    """3006 AUTH_CREATE_ACL, 3007 AUTH_UPDATE_ACL, 3009 AUTH_GET_ACL."""

    subject: str | None = None


class DeleteAclRequestHeader(RpcRequestHeader):
    """3008 AUTH_DELETE_ACL."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequestHeader(CommandHeader):
    """3010 AUTH_LIST_ACL."""

    subject_filter: str | None = None
    resource_filter: str | None = None
