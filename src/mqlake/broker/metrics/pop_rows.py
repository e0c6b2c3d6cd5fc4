"""The figures of pop, under RocketMQ's names: name, description, (labels, value) rows, whether it only grows."""

from __future__ import annotations

from collections.abc import Iterator

from mqlake.broker.metrics.timer_rows import TimerRows as Rows
from mqlake.broker.pop.service import PopService


def pop_rows(service: PopService) -> Iterator[Rows]:
    revive, state = service.revive_service, service.state
    topic = state.revive_log.topic
    yield Rows(
        "rocketmq_pop_revive_out_message",
        "Total number of checkpoints and acknowledgements read from the revive topic",
        [
            ({"topic": topic, "revive_message_type": "CK"}, revive.checkpoints_in),
            ({"topic": topic, "revive_message_type": "ACK"}, revive.acknowledgements_in),
        ],
        True,
    )
    yield Rows(
        "rocketmq_pop_revive_retry_messages",
        "Total number of messages put into retry topics",
        [
            ({"topic": topic, "consumer_group": group}, count)
            for (topic, group), count in list(revive.counts.items())
        ],
        True,
    )
    yield Rows(
        "rocketmq_pop_revive_lag",
        "Records of the revive topic that are not done",
        [({"queue_id": str(queue.queue_id)}, revive.lag(queue)) for queue in revive.queues],
    )
    yield Rows(
        "rocketmq_pop_revive_latency",
        "How long the first checkpoint has been over its time",
        [({"queue_id": str(queue.queue_id)}, revive.latency_ms(queue)) for queue in revive.queues],
    )
    yield Rows(
        "rocketmq_pop_offset_buffer_size",
        "Pops whose checkpoint is not stored yet",
        [({}, state.queues.pending_count)],
    )
