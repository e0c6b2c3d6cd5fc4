"""The parts of the AsyncAPI page about subscribers and publishers. AsyncAPI has no bindings for RocketMQ: how they
subscribe is in the description."""

from __future__ import annotations

from typing import Any

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec


class RocketSubscriberSpecification(SubscriberSpecification):
    @property
    def address(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.address]

    def get_schema(self) -> dict[str, Any]:
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        description = "\n\n".join(filter(None, (self.description, self.config.about())))
        return {
            self.name: SubscriberSpec(
                address=self.address,
                description=description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class RocketPublisherSpecification(PublisherSpecification):
    @property
    def address(self) -> str:
        return f"{self._outer_config.prefix}{self.config.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, Any]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        description = "\n\n".join(filter(None, (self.config.description_, self.config.about))) or None
        return {
            self.name: PublisherSpec(
                address=self.address,
                description=description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }
