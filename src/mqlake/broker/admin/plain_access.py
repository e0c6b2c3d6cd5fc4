"""Accounts of plain_acl.yml (ACL 1.0), changed and listed by operators: codes 50 to 54, for an admin account.

A change is on disk before it is answered, and counts from then on. 54 was gone from RocketMQ by 5.3; secrets are left
out of its answer.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import orjson

from mqlake.auth.plain_acl import PUB, SUB, Account, Permission, PlainAccess, files_of
from mqlake.auth.plain_acl_changes import change_account, change_white, delete_account, version_of
from mqlake.broker.broker import Broker
from mqlake.errors import ConfigError, ResponseError
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.processors import answers

UPDATE_FAILED, DELETE_FAILED, WHITE_FAILED = 209, 210, 211
"""RocketMQ's codes; others of its answers have the same numbers."""


class PlainAccessAdmin:
    def __init__(self, broker: Broker, access: PlainAccess) -> None:
        self._broker = broker
        self._access = access

    @answers(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG)
    def change_account(self, request: RemotingCommand) -> RemotingCommand:
        """50."""
        fields = request.ext_fields
        return self._change(UPDATE_FAILED, lambda directory: change_account(directory, fields))

    @answers(RequestCode.DELETE_ACL_CONFIG)
    def delete_account(self, request: RemotingCommand) -> RemotingCommand:
        """51."""
        key = request.ext_fields.get("accessKey")
        return self._change(DELETE_FAILED, lambda directory: delete_account(directory, key))

    @answers(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG)
    def change_white(self, request: RemotingCommand) -> RemotingCommand:
        """53."""
        addresses, path = map(request.ext_fields.get, ("globalWhiteAddrs", "aclFileFullPath"))
        return self._change(WHITE_FAILED, lambda directory: change_white(directory, addresses, path))

    def _change(self, failed: int, change: Callable[[str], None]) -> RemotingCommand:
        try:
            self._access.change(change)
        except (ConfigError, OSError) as error:
            raise ResponseError(failed, str(error)) from None
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_BROKER_CLUSTER_ACL_INFO)
    def get_versions(self) -> RemotingCommand:
        """52: which state of its files this broker has."""
        paths = files_of(self._access.directory)
        versions = {os.path.abspath(path): version_of(path) for path in paths}
        config = self._broker.config
        answer = RemotingCommand.create_response()
        answer.ext_fields |= {
            "clusterName": config.broker_cluster_name,
            "brokerName": config.broker_name,
            "brokerAddr": f"{config.broker_ip1}:{config.listen_port}",
            "version": orjson.dumps(next(iter(versions.values()), {})).decode(),
            "allAclFileVersion": orjson.dumps(versions).decode(),
        }
        return answer

    @answers(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG)
    def get_accounts(self) -> RemotingCommand:
        """54."""
        acl = self._access.acl
        body = {
            "globalWhiteAddrs": list(acl.white_texts),
            "plainAccessConfigs": [account_to_json(each) for each in acl.accounts.values()],
        }
        return RemotingCommand.create_response(body=orjson.dumps(body))


def account_to_json(account: Account) -> dict[str, object]:
    """Without its secret."""
    return {
        "accessKey": account.access_key,
        "whiteRemoteAddress": account.white_text,
        "admin": account.is_admin,
        "defaultTopicPerm": permission_text(account.default_topic),
        "defaultGroupPerm": permission_text(account.default_group),
        "topicPerms": [f"{name}={permission_text(held)}" for name, held in account.topics.items()],
        "groupPerms": [f"{name}={permission_text(held)}" for name, held in account.groups.items()],
    }


def permission_text(held: Permission) -> str:
    return {PUB: "PUB", SUB: "SUB", PUB | SUB: "PUB|SUB"}.get(held, "DENY")
