"""`mqlake admin`: the operator's commands, against our brokers and RocketMQ's alike.

Commands are verbs in groups (`topic create`, `group progress`). Each also answers to the name RocketMQ's mqadmin
has for it (`updateTopic`, `consumerProgress`), with the same letters for its options.
"""

from __future__ import annotations

from typing import Any

import click

from mqlake.cli.clients import count_of_common
from mqlake.cli.lazy_group import LazyGroup

COMMANDS = {
    "cluster": ("mqlake.cli.admin.broker:cluster", "Clusters and their brokers."),
    "topic": (
        "mqlake.cli.admin.topic:topic",
        "Create, list and delete topics; show their routes and offsets.",
    ),
    "group": (
        "mqlake.cli.admin.group:group",
        "Consumer groups: their settings, progress, clients and offsets.",
    ),
    "message": ("mqlake.cli.admin.message:message", "Find, show and send messages."),
    "timer": ("mqlake.cli.admin.timer:timer", "Timer messages that wait on brokers; recalling one."),
    "producer": ("mqlake.cli.admin.group:producer", "Connected producers."),
    "broker": ("mqlake.cli.admin.broker:broker", "Brokers: their state and settings, and cleaning up."),
    "failover": ("mqlake.cli.admin.failover:failover", "Groups with failover: who is master, and moving it."),
    "namesrv": ("mqlake.cli.admin.namesrv:namesrv", "Settings of the name servers."),
    "kv": ("mqlake.cli.admin.namesrv:kv", "Key-value configuration of the name servers."),
    "user": ("mqlake.cli.admin.access:user", "Users of brokers with access control."),
    "acl": ("mqlake.cli.admin.access:acl", "What users may do; `acl test` says what would be decided."),
    "stats": ("mqlake.cli.admin.topic:stats", "Messages in and out per topic and group."),
}
MQADMIN_NAMES = {
    "clusterList": "cluster list",
    "updateTopic": "topic create",
    "updateTopicPerm": "topic perm",
    "updateStaticTopic": "topic static",
    "remappingStaticTopic": "topic remap",
    "deleteTopic": "topic delete",
    "topicList": "topic list",
    "topicRoute": "topic route",
    "topicStatus": "topic status",
    "topicClusterList": "topic clusters",
    "updateSubGroup": "group create",
    "deleteSubGroup": "group delete",
    "getConsumerConfig": "group config",
    "consumerProgress": "group progress",
    "consumerConnection": "group connections",
    "consumerStatus": "group status",
    "resetOffsetByTime": "group reset-offset",
    "skipAccumulatedMessage": "group skip",
    "cloneGroupOffset": "group clone-offset",
    "setConsumeMode": "group set-mode",
    "producerConnection": "producer connections",
    "queryMsgByKey": "message by-key",
    "queryMsgById": "message by-id",
    "queryMsgByUniqueKey": "message by-unique-key",
    "queryMsgByOffset": "message by-offset",
    "sendMessage": "message send",
    "brokerStatus": "broker status",
    "brokerConsumeStats": "broker consume-stats",
    "getBrokerConfig": "broker config",
    "updateBrokerConfig": "broker set",
    "deleteExpiredCommitLog": "broker delete-expired-log",
    "cleanExpiredCQ": "broker clean-queues",
    "cleanUnusedTopic": "broker clean-topics",
    "wipeWritePerm": "broker wipe-write",
    "addWritePerm": "broker add-write",
    "getNamesrvConfig": "namesrv config",
    "updateNamesrvConfig": "namesrv set",
    "updateKvConfig": "kv put",
    "deleteKvConfig": "kv delete",
    "statsAll": "stats",
    "createUser": "user create",
    "updateUser": "user update",
    "deleteUser": "user delete",
    "getUser": "user get",
    "listUser": "user list",
    "copyUser": "user copy",
    "createAcl": "acl create",
    "updateAcl": "acl update",
    "deleteAcl": "acl delete",
    "getAcl": "acl get",
    "listAcl": "acl list",
    "copyAcl": "acl copy",
}
_LOWERED = {name.lower(): path for name, path in MQADMIN_NAMES.items()}


class AdminGroup(LazyGroup):
    """Also finds the commands under mqadmin's names, which the help does not list."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        path = None if cmd_name in self.lazy else _LOWERED.get(cmd_name.lower())
        if path is None:
            return super().get_command(ctx, cmd_name)
        command: Any = self
        for word in path.split():
            command = command.get_command(ctx, word)
        assert isinstance(command, click.Command)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Options of the cluster may also stand before the command and its group: `admin -n HOST:PORT topic list`."""
        words, ahead = [], []
        command: click.Command | None = self
        while args and isinstance(command, click.Group):
            taken = count_of_common(args)
            ahead += args[:taken]
            if not (args := args[taken:]) or args[0].startswith("-"):
                break
            words.append(args[0])
            command = command.get_command(ctx, args[0])
            args = args[1:]
        for_command = () if command is None or isinstance(command, click.Group) else ahead
        return super().parse_args(ctx, [*words, *for_command, *args])

    def names_to_suggest(self, ctx: click.Context) -> list[str]:
        return [*super().names_to_suggest(ctx), *MQADMIN_NAMES]


@click.group(cls=AdminGroup, lazy=COMMANDS)
def admin() -> None:
    """Look after clusters: topics, groups, messages, brokers; mqlake's and RocketMQ's.

    Commands are found under mqadmin's names, too: `mqlake admin consumerProgress -g GROUP`. Options of the cluster may
    stand first: `mqlake admin -n HOST:PORT topic list`.
    """
