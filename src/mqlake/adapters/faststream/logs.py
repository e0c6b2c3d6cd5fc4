"""The log lines of a RocketBroker: topic, group and message id, as wide as they have to be."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

MESSAGE_ID_WIDTH = 32


class RocketParamsStorage(DefaultLoggerStorage):
    def __init__(self) -> None:
        super().__init__()
        self._widths = {"topic": 5, "group": 5}

    def register_subscriber(self, params: dict[str, Any]) -> None:
        for name, width in self._widths.items():
            self._widths[name] = max(width, len(params.get(name, "")))

    def get_logger(self, *, context: Any) -> Any:
        found = self._get_logger_ref()
        if not found:
            columns = " | ".join(f"%({name})-{width}s" for name, width in self._widths.items())
            found = get_broker_logger(
                name="rocketmq",
                default_context=dict.fromkeys(self._widths, ""),
                message_id_ln=MESSAGE_ID_WIDTH,
                fmt=f"%(asctime)s %(levelname)-8s - {columns} | %(message_id)-{MESSAGE_ID_WIDTH}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(found)
        return found

    def set_level(self, level: int) -> None:
        self.logger_log_level = level


make_logger = partial(make_logger_state, default_storage_cls=RocketParamsStorage)
DEFAULT_LEVEL = logging.INFO
