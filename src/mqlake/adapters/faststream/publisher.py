"""RocketPublisher: what `broker.publisher(...)` makes, and the one that answers requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from faststream._internal.endpoint.publisher import PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand

from mqlake.adapters.faststream.command import Keys, RocketPublishCommand
from mqlake.adapters.faststream.config import RocketPublisherConfig
from mqlake.adapters.faststream.message import RocketMessage
from mqlake.adapters.faststream.specification import RocketPublisherSpecification
from mqlake.client.results import SendResult
from mqlake.message import MessageExt


class RocketPublisher(PublisherUsecase):
    def __init__(self, config: RocketPublisherConfig, specification: RocketPublisherSpecification) -> None:
        super().__init__(config, specification)
        self._config = config

    @property
    def topic(self) -> str:
        return f"{self._outer_config.prefix}{self._config.topic}"

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        tag: str = "",
        keys: Keys = (),
        sharding_key: str = "",
        delay_s: float = 0.0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> SendResult | None:
        """As RocketBroker.publish; what is not given is the publisher's."""
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            tag=tag,
            keys=keys,
            sharding_key=sharding_key,
            delay_s=delay_s,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        return await self._send(RocketPublishCommand.from_cmd(cmd, batch=self._config.batch), ())

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        tag: str = "",
        keys: Keys = (),
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = 0.5,
    ) -> RocketMessage:
        """As RocketBroker.request."""
        cmd = RocketPublishCommand(
            message,
            topic=topic or self.topic,
            tag=tag,
            keys=keys,
            headers=headers,
            correlation_id=correlation_id or self._outer_config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        self._fill(cmd)
        reply: RocketMessage = await self._basic_request(cmd, producer=self._outer_config.producer)
        return reply

    async def _publish(self, cmd: PublishCommand, *, _extra_middlewares: Iterable[Any]) -> None:
        """Publishes what a handler has returned."""
        await self._send(RocketPublishCommand.from_cmd(cmd, batch=self._config.batch), _extra_middlewares)

    async def _send(self, cmd: RocketPublishCommand, middlewares: Iterable[Any]) -> SendResult | None:
        cmd.destination = cmd.destination or self.topic
        cmd.reply_to = cmd.reply_to or self._config.reply_to
        self._fill(cmd)
        send = self._basic_publish_batch if self._config.batch else self._basic_publish
        sent: SendResult | None = await send(
            cmd, producer=self._outer_config.producer, _extra_middlewares=middlewares
        )
        return sent

    def _fill(self, cmd: RocketPublishCommand) -> None:
        own = self._config
        cmd.defaults(tag=own.tag, keys=own.keys, sharding_key=own.sharding_key, headers=own.headers)


class RocketReplier(FakePublisher):
    """Sends a handler's result to who asked (`request`), or to the topic that the message names."""

    def __init__(self, producer: Any, topic: str, request: MessageExt | None) -> None:
        super().__init__(producer=producer)
        self._topic, self._request = topic, request

    def patch_command(self, cmd: PublishCommand) -> RocketPublishCommand:
        patched = RocketPublishCommand.from_cmd(super().patch_command(cmd))
        patched.destination, patched.request = self._topic, self._request
        return patched
