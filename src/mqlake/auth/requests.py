"""The needs of each request: one table from request code to resources and actions.

    rule = RULES[RequestCode.PULL_MESSAGE]
    rule.needs(command, context)     [Topic:T Sub, Group:G Sub]

A request whose code is not here needs a super user, and a test fails for a code that a broker or name server answers
and this table lacks. The table in docs/access-control.md is made from this one (tools/access_table.py). Where it
differs from RocketMQ 5.3.3 the rule says so in `differs`; the reason is always one of: there any user may do it, there
a name in the request is believed although the request reaches other data, or there a usual client is refused.

A retry topic (`%RETRY%G`) is the group's: whoever names one in a topic's place needs the group instead.
Facts: DefaultAuthorizationContextBuilder of RocketMQ 5.3.3.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from mqlake.auth.evaluator import Need, need
from mqlake.auth.model import Action, Resource, ResourceType
from mqlake.errors import FormatError
from mqlake.message import AUTO_CREATE_TOPIC_KEY_TOPIC, RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig, SubscriptionGroupList
from mqlake.remoting.bodies.client import (
    CheckClientRequestBody,
    HeartbeatData,
    LockBatchRequestBody,
    QueryAssignmentRequestBody,
    SetMessageRequestModeRequestBody,
)
from mqlake.remoting.bodies.codec import JsonBody
from mqlake.remoting.bodies.pop import BatchAckMessageRequestBody
from mqlake.remoting.bodies.topic import CreateTopicListRequestBody
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand

PUB, SUB, CREATE, UPDATE, DELETE, GET, LIST = (
    Action.PUB,
    Action.SUB,
    Action.CREATE,
    Action.UPDATE,
    Action.DELETE,
    Action.GET,
    Action.LIST,
)


Body = TypeVar("Body", bound=JsonBody)


class UnclearRequestError(Exception):
    """A request does not say what it is about, so nobody but a super user may send it."""


@dataclass(frozen=True, slots=True)
class Context:
    """Facts that a server knows and requests do not say."""

    cluster_name: str
    topic_at: Callable[[int], str | None] = lambda offset: None
    """The topic of the message at a physical offset (of a half message: its real topic); None if there is none."""


Names = Callable[[RemotingCommand, Context], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of resource that a request needs, for each name that `names` finds."""

    type: ResourceType
    actions: tuple[Action, ...]
    names: Names
    where: str
    """For the documentation: the field, or what else has the name."""
    retry_actions: tuple[Action, ...] = ()
    """If the topic is a retry topic: the actions needed on its group; empty: it may be that of the request's own
    group."""
    own_group: Names | None = None
    fields: tuple[str, ...] | None = None
    """The fields that decide which names there are; None: there is more to it."""

    @property
    def text(self) -> str:
        return f"{self.type.text} {' or '.join(action.text for action in self.actions)} ({self.where})"

    def needs(self, command: RemotingCommand, context: Context) -> Iterable[Need]:
        for name in self.names(command, context):
            if self.type is ResourceType.TOPIC and name.startswith(RETRY_GROUP_TOPIC_PREFIX):
                yield from self._retry_needs(name.removeprefix(RETRY_GROUP_TOPIC_PREFIX), command, context)
            elif self.type is ResourceType.GROUP:
                yield need(Resource.group(name.removeprefix(RETRY_GROUP_TOPIC_PREFIX)), *self.actions)
            else:
                yield need(Resource(self.type, name), *self.actions)

    def _retry_needs(self, name: str, command: RemotingCommand, context: Context) -> Iterable[Need]:
        if self.own_group is None:
            yield need(Resource.group(name), *(self.retry_actions or self.actions))
            return
        for group in self.own_group(command, context):
            if name == group:
                return  # the group is needed by another part
            if name.startswith(
                (f"{group}+", f"{group}_")
            ):  # POP has a retry topic for each topic of the group
                yield need(Resource.topic(name[len(group) + 1 :]), *self.actions)
                return
        yield need(Resource.group(name), *self.actions)


@dataclass(frozen=True)
class Rule:
    code: int
    name: str
    parts: tuple[Part, ...]
    differs: str = ""
    """How this differs from RocketMQ 5.3.3; empty: not at all."""
    supers_only: bool = False

    def needs(self, command: RemotingCommand, context: Context) -> list[Need]:
        """UnclearRequestError."""
        try:
            return list(dict.fromkeys(found for part in self.parts for found in part.needs(command, context)))
        except (FormatError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise UnclearRequestError(str(error)) from error

    @functools.cached_property
    def fields(self) -> tuple[str, ...] | None:
        """The fields that decide what a request needs; None: there is more to it."""
        found: list[str] = []
        for part in self.parts:
            if part.fields is None:
                return None
            found += part.fields
        return tuple(found)

    @property
    def text(self) -> str:
        if self.supers_only:
            return "super users"
        return "; ".join(part.text for part in self.parts) or "any user"


# --- where the names are -----------------------------------------------------------------------------------


def _field(name: str, *, optional: bool = False, separator: str = "") -> Names:
    def names(command: RemotingCommand, _: Context) -> Iterable[str]:
        text = command.ext_fields.get(name)
        if not text:
            if optional:
                return ()
            raise UnclearRequestError(f"{name} is missing")
        return [text] if not separator else [each for each in text.split(separator) if each]

    return names


def _body(kind: type[Body], read: Callable[[Body], Iterable[str]]) -> Names:
    """Names in the body, read by the same class as the processor's: a field that only one of them saw would be a way
    around the check."""

    def names(command: RemotingCommand, _: Context) -> Iterable[str]:
        return list(read(kind.from_json(command.body_bytes())))

    return names


def _at_offset(name: str) -> Names:
    """The topic of the message at the physical offset in a field."""

    def names(command: RemotingCommand, context: Context) -> Iterable[str]:
        topic = context.topic_at(int(command.ext_fields.get(name) or 0))
        return () if topic is None else (topic,)

    return names


def _of_message_id(command: RemotingCommand, context: Context) -> Iterable[str]:
    """The topic of the message whose id (host and physical offset in hexadecimal) is in `msgId`."""
    text = command.ext_fields.get("msgId")
    topic = context.topic_at(int(text[-16:], 16)) if text else None
    return () if topic is None else (topic,)


# --- parts -------------------------------------------------------------------------------------------------


def _topic(
    *actions: Action, field: str = "topic", optional: bool = False, retry: tuple[Action, ...] = ()
) -> Part:
    return Part(ResourceType.TOPIC, actions, _field(field, optional=optional), field, retry, None, (field,))


def _own_topic(*actions: Action, field: str = "topic", group: str = "consumerGroup") -> Part:
    """A topic, or a retry topic of the group in the request."""
    own = _field(group, optional=True)
    return Part(ResourceType.TOPIC, actions, _field(field), field, (), own, (field, group))


def _group(*actions: Action, field: str = "consumerGroup", optional: bool = False) -> Part:
    names = _field(field, optional=optional)
    return Part(ResourceType.GROUP, actions, names, field, fields=(field,))


def _cluster(action: Action, field: str = "") -> Part:
    def names(command: RemotingCommand, context: Context) -> Iterable[str]:
        return ((command.ext_fields.get(field) if field else None) or context.cluster_name,)

    read = (field,) if field else ()
    return Part(ResourceType.CLUSTER, (action,), names, field or "the broker's cluster", fields=read)


def _groups_in(kind: type[Body], read: Callable[[Body], Iterable[str]], *actions: Action, where: str) -> Part:
    return Part(ResourceType.GROUP, actions, _body(kind, read), where)


def _topics_in(
    kind: type[Body],
    read: Callable[[Body], Iterable[str]],
    *actions: Action,
    where: str,
    groups: Callable[[Body], Iterable[str]] | None = None,
) -> Part:
    """`groups`: those whose retry topics the body may name."""
    own = None if groups is None else _body(kind, groups)
    return Part(ResourceType.TOPIC, actions, _body(kind, read), where, (), own)


TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
_OPEN = "there any user may"
_MESSAGE = "there only a topic that the request names counts; here that of the message it reaches"

RULES: dict[int, Rule] = {}


def _rule(
    codes: int | Iterable[int],
    *parts: Part,
    differs: str = "",
    supers_only: bool = False,
) -> None:
    for code in (codes,) if isinstance(codes, int) else codes:
        known = {int(member): member.name for member in RequestCode}
        name = known.get(int(code)) or _OTHER_NAMES[int(code)]
        RULES[int(code)] = Rule(int(code), name, parts, differs, supers_only)


_OTHER_NAMES = {
    60: "GET_TIMER_CHECK_POINT",
    61: "GET_TIMER_METRICS",
    902: "ADD_BROKER",
    903: "REMOVE_BROKER",
    1001: "CONTROLLER_ALTER_SYNC_STATE_SET",
    1002: "CONTROLLER_ELECT_MASTER",
    1003: "CONTROLLER_REGISTER_BROKER",
    1004: "CONTROLLER_GET_REPLICA_INFO",
    1005: "CONTROLLER_GET_METADATA_INFO",
    1006: "CONTROLLER_GET_SYNC_STATE_DATA",
    1007: "GET_BROKER_EPOCH_CACHE",
    1008: "NOTIFY_BROKER_ROLE_CHANGED",
    1009: "UPDATE_CONTROLLER_CONFIG",
    1010: "GET_CONTROLLER_CONFIG",
    1011: "CLEAN_BROKER_DATA",
    1012: "CONTROLLER_GET_NEXT_BROKER_ID",
    1013: "CONTROLLER_APPLY_BROKER_ID",
    2001: "UPDATE_COLD_DATA_FLOW_CTR_CONFIG",
}

# messages
_SEND = "there a send to a retry topic needs the group that the sender names as its own; here the topic's"
_rule(10, _topic(PUB, retry=(SUB,)), differs=_SEND)
_rule((310, 320), _topic(PUB, field="b", retry=(SUB,)), differs=_SEND)
_rule(324, _topic(PUB, retry=(SUB,)), differs=_OPEN)
_rule(325, _topic(PUB, field="b", retry=(SUB,)), differs=_OPEN)
_rule(370, _topic(PUB))
_rule(
    37,
    Part(TOPIC, (PUB,), _at_offset("commitLogOffset"), "of the half message", (SUB,)),
    _topic(PUB, optional=True, retry=(SUB,)),
    differs=_MESSAGE,
)
_rule(
    36,
    _group(SUB, field="group"),
    Part(
        TOPIC,
        (SUB,),
        _at_offset("offset"),
        "of the message that is given back",
        own_group=_field("group", optional=True),
    ),
    differs=_MESSAGE,
)
_OWN = "there the retry topic of any group may be named; here only that of the request's group"
_rule(11, _own_topic(SUB), _group(SUB), differs=_OWN)
_rule(361, _own_topic(SUB), _group(SUB), differs=_OPEN)
_rule(12, _topic(SUB, GET))
_rule(33, Part(TOPIC, (GET,), _at_offset("offset"), "of the message", (GET,)), differs=_MESSAGE)
_rule(
    309,
    _group(SUB),
    Part(TOPIC, (SUB,), _of_message_id, "of the message", own_group=_field("consumerGroup", optional=True)),
    _topic(SUB, optional=True),
    differs=_MESSAGE,
)
_rule(14, _own_topic(SUB, GET), _group(SUB, GET), differs=_OWN)
_rule(15, _own_topic(SUB, UPDATE), _group(SUB, UPDATE), differs=_OWN)
_rule((200050, 200051, 200052, 200053, 200054), _own_topic(SUB), _group(SUB), differs=_OWN)
_rule(200055, _own_topic(GET), _group(GET), differs=_OWN)
_rule(
    200151,
    _topics_in(
        BatchAckMessageRequestBody,
        lambda body: (ack.topic for ack in body.acks),
        SUB,
        where="of each entry",
        groups=lambda body: (ack.consumer_group for ack in body.acks),
    ),
    _groups_in(
        BatchAckMessageRequestBody,
        lambda body: (ack.consumer_group for ack in body.acks),
        SUB,
        where="of each entry",
    ),
    differs=_OPEN,
)
_IN_BODY = "consumerGroup in the body"
_rule(
    400,
    _topics_in(
        QueryAssignmentRequestBody,
        lambda body: (body.topic,),
        SUB,
        where="topic in the body",
        groups=lambda body: (body.consumer_group,),
    ),
    _groups_in(QueryAssignmentRequestBody, lambda body: (body.consumer_group,), SUB, where=_IN_BODY),
    differs=_OPEN,
)

# clients
_rule(
    34,
    _groups_in(
        HeartbeatData,
        lambda body: (consumer.group_name for consumer in body.consumer_data_set),
        SUB,
        where="of each consumer",
    ),
    _topics_in(
        HeartbeatData,
        lambda body: (
            subscription.topic
            for consumer in body.consumer_data_set
            for subscription in consumer.subscription_data_set
        ),
        SUB,
        where="of each subscription",
        groups=lambda body: (consumer.group_name for consumer in body.consumer_data_set),
    ),
    differs=_OWN,
)
_rule(35, _group(SUB, optional=True))
_rule(
    46,
    _groups_in(CheckClientRequestBody, lambda body: (body.group or "",), SUB, where="group in the body"),
    _topics_in(
        CheckClientRequestBody,
        lambda body: (body.subscription_data.topic,) if body.subscription_data else (),
        SUB,
        where="of the subscription",
        groups=lambda body: (body.group or "",),
    ),
    differs=_OPEN,
)
_rule(38, _group(SUB, GET))
_rule(
    (41, 42),
    _groups_in(LockBatchRequestBody, lambda body: (body.consumer_group,), SUB, where=_IN_BODY),
    _topics_in(
        LockBatchRequestBody,
        lambda body: (queue.topic for queue in body.mq_set),
        SUB,
        where="of each queue",
        groups=lambda body: (body.consumer_group,),
    ),
    differs=_OWN,
)

# topics
_rule(17, _topic(CREATE))
_rule(
    18,
    _topics_in(
        CreateTopicListRequestBody,
        lambda body: (topic.topic_name for topic in body.topic_config_list),
        CREATE,
        where="of each topic",
    ),
    differs=_OPEN,
)
_rule(215, _topic(DELETE))
_rule(
    (29, 30, 31),
    _topic(SUB, GET),
    differs="there Get alone, which refuses a consumer that looks where to begin",
)
_rule((32, 202, 300, 351, 354), _topic(GET))
_rule(323, _topic(UPDATE))
_rule(513, _topic(UPDATE), differs=_OPEN)
_rule((21, 206, 224, 304, 305, 311, 312, 313), _cluster(GET), differs=_OPEN)

# groups
_rule(
    200,
    _groups_in(
        SubscriptionGroupConfig, lambda body: (body.group_name,), CREATE, where="groupName in the body"
    ),
    differs=_OPEN,
)
_rule(
    225,
    _groups_in(
        SubscriptionGroupList,
        lambda body: (group.group_name for group in body.group_config_list),
        CREATE,
        where="of each group",
    ),
    differs=_OPEN,
)
_rule(207, _group(DELETE, field="groupName"))
_rule((203, 307), _group(GET))
_rule((343, 352), _group(GET, field="group"))
_rule((201, 43), _cluster(GET), differs=_OPEN)
_rule((303, 223), _topic(GET), _group(GET, field="group"))
_rule(345, _topic(GET, optional=True), _group(GET, field="group"))
_rule(321, _topic(GET), _group(GET, optional=True))
_rule(
    208,
    _group(GET),
    _topic(GET, optional=True),
    Part(TOPIC, (GET,), _field("topicList", optional=True, separator=";"), "topicList"),
)
_rule(
    308,
    _topic(GET),
    _group(GET, field="compareGroup"),
    Part(GROUP, (GET,), _field("filterGroups", optional=True, separator=","), "filterGroups"),
)
_rule((222, 353), _topic(UPDATE), _group(UPDATE, field="group"))
_rule(
    314,
    _topic(UPDATE, optional=True),
    _group(UPDATE, field="destGroup"),
    _group(GET, field="srcGroup"),
    differs="there the group whose offsets are read is not looked at",
)
_rule(
    401,
    _topics_in(
        SetMessageRequestModeRequestBody, lambda body: (body.topic,), UPDATE, where="topic in the body"
    ),
    _groups_in(SetMessageRequestModeRequestBody, lambda body: (body.consumer_group,), UPDATE, where=_IN_BODY),
    differs=_OPEN,
)

# brokers and clusters
_rule((204, 315, 317, 328, 355, 1004, 1012), _cluster(GET))
_rule(
    (26, 28, 45, 60, 61, 106, 319, 402, 907, 1005, 1006, 1007, 1010, 2003, 52, 54),
    _cluster(GET),
    differs=_OPEN,
)
_rule((101, 219, 322), _cluster(GET, "clusterName"))
_rule(901, _cluster(GET, "brokerClusterName"))
_rule((25, 306, 316, 318, 329, 1009, 2001, 2002, 2004, 200056), _cluster(UPDATE), differs=_OPEN)
_rule(
    (
        100,
        102,
        103,
        104,
        205,
        216,
        217,
        327,
        902,
        903,
        904,
        905,
        906,
        908,
        1001,
        1002,
        1003,
        1008,
        1011,
        1013,
    ),
    _cluster(UPDATE, "clusterName"),
)
_rule((50, 51, 53), supers_only=True)


# routes
def _routed(command: RemotingCommand, context: Context) -> Iterable[str]:
    """Every producer asks for the route of TBW102, which says where new topics may be made."""
    return [name for name in _field("topic")(command, context) if name != AUTO_CREATE_TOPIC_KEY_TOPIC]


_rule(
    105,
    Part(TOPIC, (PUB, SUB, GET), _routed, f"topic; of {AUTO_CREATE_TOPIC_KEY_TOPIC} any user", (SUB, GET)),
    differs="there the name server checks nothing",
)

# users and acls
_rule((3001, 3002, 3003, 3006, 3007, 3008), _cluster(UPDATE))
_rule((3004, 3005, 3009, 3010), _cluster(GET))

TO_CLIENTS = frozenset({39, 40, 220, 221, 326})
"""Sent by brokers to clients only."""
