"""MessageRequestModeManager: how the members of a group get the messages of a topic, kept in messageRequestMode.json.

{"messageRequestModeMap":{"T":{"G":{"consumerGroup":"G","mode":"PULL","popShareQueueNum":0,"topic":"T"}}}}

It holds only what an operator has set.
"""

from __future__ import annotations

from typing import Any

from mqlake.broker.state.config_manager import ConfigManager
from mqlake.remoting.bodies.client import MessageRequestModes, SetMessageRequestModeRequestBody


class MessageRequestModeManager(ConfigManager):
    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.modes = MessageRequestModes()

    def set_message_request_mode(self, mode: SetMessageRequestModeRequestBody) -> None:
        """On the disk when it returns. OSError."""
        self.modes.message_request_mode_map.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.persist()

    def encode(self) -> dict[str, Any]:
        return self.modes.to_value()

    def decode(self, value: Any) -> None:
        self.modes = MessageRequestModes.from_value(value)
