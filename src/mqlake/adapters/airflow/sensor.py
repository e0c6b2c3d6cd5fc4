"""RocketMessageSensor: a task that waits for a message, which is its XCom (see events)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

from airflow.providers.common.compat.sdk import BaseSensorOperator, PokeReturnValue, conf

from mqlake.adapters.airflow.events import event_of
from mqlake.adapters.airflow.hook import RocketHook
from mqlake.adapters.airflow.trigger import RocketMessageTrigger, consumer_of, selector_of, take
from mqlake.adapters.patience import is_away
from mqlake.client.config import ClientConfig
from mqlake.client.loop_thread import LOOP_THREAD
from mqlake.errors import MqlakeError, TopicNotFoundError

POKE_S = 1.0
"""Seconds for which one look waits for a message."""


class RocketMessageSensor(BaseSensorOperator):
    template_fields: ClassVar[Sequence[str]] = ("topic", "group", "tags", "sql")
    ui_color = "#fff0d0"

    def __init__(
        self,
        *,
        topic: str,
        group: str = "",
        tags: str = "*",
        sql: str = "",
        rocketmq_conn_id: str = RocketHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **options: Any,
    ) -> None:
        """group: whose messages; `airflow-DAG-TASK` by default, so each sensor has all messages of its topic in turn.
        tags, sql: which messages. deferrable: waits in the triggerer instead of in a worker."""
        super().__init__(**options)
        self.topic, self.group, self.tags, self.sql = topic, group or self._own_group(), tags, sql
        self.rocketmq_conn_id, self.deferrable = rocketmq_conn_id, deferrable

    def _own_group(self) -> str:
        text = f"airflow-{self.dag_id}-{self.task_id}"
        return "".join(each if each.isascii() and (each.isalnum() or each in "_-") else "_" for each in text)

    def execute(self, context: Any) -> Any:
        if not self.deferrable:
            return super().execute(context)
        trigger = RocketMessageTrigger(
            self.topic,
            group=self.group,
            tags=self.tags,
            sql=self.sql,
            once=True,
            rocketmq_conn_id=self.rocketmq_conn_id,
        )
        limit = timedelta(seconds=self.timeout)
        return self.defer(trigger=trigger, method_name="execute_complete", timeout=limit)

    def execute_complete(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        return event

    def poke(self, context: Any) -> PokeReturnValue:
        where = RocketHook(self.rocketmq_conn_id).config()
        try:
            event = LOOP_THREAD.run(self._look(where))
        except MqlakeError as error:
            if not is_away(error) and not isinstance(error, TopicNotFoundError):
                raise
            self.log.warning("topic %s: %s", self.topic, error)
            event = None
        return PokeReturnValue(is_done=event is not None, xcom_value=event)

    async def _look(self, where: ClientConfig) -> dict[str, Any] | None:
        async with consumer_of(self.group, where) as consumer:
            consumer.subscribe(self.topic, selector_of(self.tags, self.sql))
            for message in await take(consumer, POKE_S):
                await consumer.ack(message)
                return event_of(message)
        return None
