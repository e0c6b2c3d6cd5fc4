"""RocketPublishCommand: a message to be published, which FastStream's middlewares see, and how it becomes messages.

body, headers        encoded by FastStream's codec; headers are properties
tag, keys            RocketMQ's own; consumers filter by the tag and find by the keys
sharding_key         messages with the same one go to the same queue, so they keep their order
delay_s              seconds that the broker keeps it back
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faststream._internal.parser import BatchCodecProto
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from mqlake.adapters.faststream.message import CONTENT_TYPE, CORRELATION_ID, REPLY_TO, sent_body
from mqlake.base.clock import now_ms
from mqlake.errors import MessageError
from mqlake.message import PROPERTY_SHARDING_KEY, STRING_PROPERTY, Message, MessageExt

Keys = str | Iterable[str]


class RocketResponse(Response):
    """A handler's result with what RocketMQ has besides; also one message of `publish_batch`."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        tag: str = "",
        keys: Keys = (),
        sharding_key: str = "",
        delay_s: float = 0.0,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.tag, self.keys, self.sharding_key, self.delay_s = tag, keys, sharding_key, delay_s

    def as_publish_command(self) -> RocketPublishCommand:
        return RocketPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            tag=self.tag,
            keys=self.keys,
            sharding_key=self.sharding_key,
            delay_s=self.delay_s,
            _publish_type=PublishType.PUBLISH,
        )


class RocketPublishCommand(BatchPublishCommand):
    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        _publish_type: PublishType,
        topic: str = "",
        tag: str = "",
        keys: Keys = (),
        sharding_key: str = "",
        delay_s: float = 0.0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        timeout: float = 0.5,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            reply_to=reply_to,
            correlation_id=correlation_id,
            headers=headers,
            _publish_type=_publish_type,
        )
        self.tag, self.keys, self.sharding_key, self.delay_s = tag, keys, sharding_key, delay_s
        self.timeout = timeout
        self.request: MessageExt | None = None
        """The request that this replies to."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> RocketPublishCommand:
        if isinstance(cmd, RocketPublishCommand):
            if batch and not cmd.extra_bodies:
                cmd.body, cmd.extra_bodies = cls._parse_bodies(cmd.body, batch=True)
            return cmd
        body, rest = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *rest,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def defaults(self, *, tag: str, keys: Keys, sharding_key: str, headers: dict[str, Any]) -> None:
        """Fills in the publisher's values where the command has none."""
        self.tag = self.tag or tag
        self.keys = self.keys or keys
        self.sharding_key = self.sharding_key or sharding_key
        self.add_headers(headers, override=False)


async def message_of(cmd: RocketPublishCommand, codec: Any, serializer: Any) -> Message:
    """MessageError for a header that RocketMQ keeps for itself, or a delay that is none."""
    body, content_type = await codec.encode(cmd.body, serializer)
    return _message(cmd, body, content_type, cmd)


async def messages_of(cmd: RocketPublishCommand, codec: Any, serializer: Any) -> list[Message]:
    """Returns the messages of a batch; a RocketResponse among the bodies has its own tag, keys and headers."""
    given = cmd.batch_bodies
    bodies = [each.body if isinstance(each, Response) else each for each in given]
    if isinstance(codec, BatchCodecProto):
        encoded = await codec.encode_batch(bodies, serializer=serializer)
    else:
        encoded = [await codec.encode(body, serializer) for body in bodies]
    return [
        _message(cmd, body, content_type, each if isinstance(each, Response) else cmd)
        for each, (body, content_type) in zip(given, encoded, strict=True)
    ]


def properties_of(cmd: RocketPublishCommand, content_type: str | None, own: Response) -> dict[str, str]:
    properties = {
        CONTENT_TYPE: content_type,
        CORRELATION_ID: own.correlation_id or cmd.correlation_id,
        REPLY_TO: cmd.reply_to,
    } | {name: value for name, value in {**cmd.headers, **own.headers}.items() if value is not None}
    taken = STRING_PROPERTY.intersection(properties)
    if taken:
        raise MessageError(
            f"topic {cmd.destination}: the header {min(taken)} is a property of RocketMQ's own; use another name "
            "(tag=, keys=, sharding_key= and delay_s= set those that a publisher chooses)"
        )
    return {name: str(value) for name, value in properties.items() if value not in (None, "")}


def _message(cmd: RocketPublishCommand, body: bytes, content_type: str | None, own: Any) -> Message:
    properties = properties_of(cmd, content_type, own)
    message = Message(
        cmd.destination,
        sent_body(body, properties),
        getattr(own, "tag", "") or cmd.tag or None,
        getattr(own, "keys", ()) or cmd.keys or None,
        properties=properties,
    )
    if cmd.sharding_key:
        message.properties[PROPERTY_SHARDING_KEY] = cmd.sharding_key
    if cmd.delay_s:
        if cmd.delay_s < 0:
            raise MessageError(f"topic {cmd.destination}: delay_s is {cmd.delay_s}: it has to be 0 or more")
        message.deliver_time_ms = now_ms() + round(cmd.delay_s * 1000)
    return message
