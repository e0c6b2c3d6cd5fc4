"""The families of metrics that a broker has, under RocketMQ 5's names and labels.

Names and labels are those of a RocketMQ 5.3.3 broker (its exporter appends the unit to the name). Differences:

    message_type               the topic's attribute message.type, `normal` without one; not each message's own.
                               `delay` and `transaction` in the topics where such messages wait, which are counted
                               there and once more where they are delivered, as in RocketMQ
    rocketmq_message_size      sum and count only
    lag, ready, in flight      differences of offsets; RocketMQ estimates how many messages a filter lets through
    messages out               starts at 0 again for a group that got no messages for a day

`metricsOtelCardinalityLimit` is the maximum number of series of one metric: later ones are left out, and
mqlake_metrics_dropped_series counts them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from mqlake.broker.admin.config import earliest_message_time
from mqlake.broker.admin.processor import AdminBrokerProcessor
from mqlake.broker.broker import Broker
from mqlake.broker.metrics.consumer_lag import ConsumerLag, Lag
from mqlake.broker.metrics.rpc_latency import RpcLatencies
from mqlake.broker.pop.service import PopService
from mqlake.broker.services.pull_request_hold import PullRequestHoldService
from mqlake.broker.state.topic_config import MESSAGE_TYPE
from mqlake.broker.transaction.metrics import TransactionMetrics
from mqlake.message import (
    DLQ_GROUP_TOPIC_PREFIX,
    RETRY_GROUP_TOPIC_PREFIX,
    SCHEDULE_TOPIC,
    TRANS_HALF_TOPIC,
    is_system_topic,
)
from mqlake.remoting.codes import RequestCode, ResponseCode, Version
from mqlake.remoting.server import RemotingServer
from mqlake.store.broker_stats import DLQ_PUT_NUMS, GROUP_GET_NUMS, GROUP_GET_SIZE
from mqlake.store.kept_copies import count_kept
from mqlake.store.timer.timer_message_store import TimerMessageStore

if TYPE_CHECKING:
    from prometheus_client.core import Metric


ROWS_AT_ONCE = 500
"""Rows that are copied before the event loop serves others."""
TIMER_BOUNDS_S = (5, 60, 300, 900, 3600, 14_400, 28_800, 86_400)
"""Upper bounds of rocketmq_timer_message_snapshot, RocketMQ's timerDist."""
SYSTEM_GROUP_PREFIX = "cid_rmq_sys_"
_TYPES_OF_SYSTEM_TOPICS = {SCHEDULE_TOPIC: "delay", TRANS_HALF_TOPIC: "transaction"}


@dataclass(frozen=True, slots=True)
class Sources:
    broker: Broker
    server: RemotingServer
    pull_request_hold_service: PullRequestHoldService
    admin_processor: AdminBrokerProcessor
    transaction_metrics: TransactionMetrics
    timers: TimerMessageStore | None
    pop_service: PopService


@dataclass(slots=True)
class Family:
    """The data of one metric; each row has its labels, then the values of its kind."""

    kind: str
    name: str
    doc: str
    common: dict[str, str]
    rows: Iterable[tuple[Any, ...]]

    def metric(self) -> Metric:
        from prometheus_client import core

        rows = list(self.rows)
        names = [*self.common, *(rows[0][0] if rows else ())]
        metric = getattr(core, f"{self.kind}MetricFamily")(self.name, self.doc, labels=names)
        common = list(self.common.values())
        for labels, *values in rows:
            metric.add_metric([*common, *labels.values()], *values)
        made: Metric = metric
        return made


class Families:
    """The figures of one scrape. On the event loop."""

    def __init__(self, sources: Sources, rpc_latencies: RpcLatencies) -> None:
        self._sources = sources
        self._rpc_latencies = rpc_latencies
        self._broker = sources.broker
        config = self._broker.config
        self._common = {
            **_labels_of(config.metrics_label),
            "cluster": config.broker_cluster_name,
            "node_type": "broker",
            "node_id": config.broker_name,
        }
        self._storage = {"storage_type": "local", "storage_medium": "disk"}
        self._limit = config.metrics_otel_cardinality_limit
        self._dropped: dict[str, int] = {}

    async def all(self) -> AsyncIterator[Family]:
        parts = (
            self._totals,
            self._connections,
            self._messages,
            self._transactions,
            self._store,
            self._archive,
            self._timers,
            self._pop,
            self._replication,
            self._execution_times,
            self._rpc,
            self._access,
        )
        for part in parts:
            for family in part():
                yield await self._taken(family)
        async for family in self._lag():
            yield await self._taken(family)
        dropped = [({"metric": name}, count) for name, count in self._dropped.items()]
        yield self._gauge("mqlake_metrics_dropped_series", "Series left out of a metric", dropped)

    async def _taken(self, family: Family) -> Family:
        """Copies the rows, up to the limit of a metric, a few at a time."""
        left = iter(family.rows)
        rows: list[tuple[Any, ...]] = []
        while some := list(islice(left, min(ROWS_AT_ONCE, self._limit - len(rows)))):
            rows += some
            await asyncio.sleep(0)
        family.rows = rows
        if dropped := sum(1 for _ in left):
            self._dropped[family.name] = dropped
        return family

    # --- the families

    def _totals(self) -> Iterator[Family]:
        broker = self._broker
        yield self._one("rocketmq_broker_permission", "Broker permission", broker.config.broker_permission)
        topics = len(broker.topic_config_manager.topic_config_table)
        yield self._one("rocketmq_topic_number", "Active topic number", topics)
        groups = len(broker.subscription_group_manager.subscription_group_table)
        yield self._one("rocketmq_consumer_group_number", "Active subscription group number", groups)
        connections = len(self._sources.server.connections)
        yield self._one("mqlake_connections", "Connections of clients", connections)
        held = self._sources.pull_request_hold_service.held_count
        yield self._one("mqlake_pull_requests_held", "Pulls that wait for messages", held)
        dropped, repairs = count_kept(broker.store_config.store_path_root_dir)
        yield self._gauge(
            "mqlake_store_kept_copies",
            "Copies of bytes that left the commit log: by recovery (dropped), and by repairs",
            [({"kind": "dropped"}, dropped), ({"kind": "repair"}, repairs)],
        )

    def _connections(self) -> Iterator[Family]:
        broker = self._broker
        producers: dict[tuple[str, str], int] = {}
        for channels in broker.producer_manager.group_channel_table.values():
            for info in channels.values():
                client = (info.language.name.lower(), _code_name(Version, info.version))
                producers[client] = producers.get(client, 0) + 1
        yield self._gauge(
            "rocketmq_producer_connections",
            "Producer connections",
            (
                ({"language": language, "version": version, "protocol_type": "remoting"}, count)
                for (language, version), count in producers.items()
            ),
        )
        consumers: dict[tuple[str, str, str, str], int] = {}
        for group, members in broker.consumer_manager.consumer_table.items():
            mode = members.consume_type.value.lower() if members.consume_type is not None else ""
            for info in members.channel_info_table.values():
                key = (group, info.language.name.lower(), _code_name(Version, info.version), mode)
                consumers[key] = consumers.get(key, 0) + 1
        yield self._gauge(
            "rocketmq_consumer_connections",
            "Consumer connections",
            (
                (
                    {
                        "consumer_group": group,
                        "language": language,
                        "version": version,
                        "consume_mode": mode,
                        "protocol_type": "remoting",
                        "is_system": _truth(_is_system_group(group)),
                    },
                    count,
                )
                for (group, language, version, mode), count in consumers.items()
            ),
        )

    def _messages(self) -> Iterator[Family]:
        totals = [
            (topic, count, size)
            for topic, (count, size) in self._broker.store.store_stats_service.topic_totals().items()
            if not _is_retry_or_dlq(topic)
        ]
        labels = self._labels_of_topic
        yield self._counter(
            "rocketmq_messages_in",
            "Total number of incoming messages",
            ((labels(topic), count) for topic, count, _ in totals),
        )
        yield self._counter(
            "rocketmq_throughput_in",
            "Total traffic of incoming messages",
            ((labels(topic), size) for topic, _, size in totals),
        )
        yield self._histogram(
            "rocketmq_message_size",
            "Incoming messages size",
            ((labels(topic), [("+Inf", count)], size) for topic, count, size in totals),
        )
        for name, what, doc in (
            ("rocketmq_messages_out", GROUP_GET_NUMS, "Total number of outgoing messages"),
            ("rocketmq_throughput_out", GROUP_GET_SIZE, "Total traffic of outgoing messages"),
        ):
            yield self._counter(name, doc, self._by_topic_and_group(what))
        yield self._counter(
            "rocketmq_send_to_dlq_messages",
            "Consumer send to DLQ messages",
            self._by_topic_and_group(DLQ_PUT_NUMS),
        )

    def _transactions(self) -> Iterator[Family]:
        metrics = self._sources.transaction_metrics
        topics = metrics.finished_by_topic.items()
        yield self._gauge(
            "rocketmq_half_messages",
            "Half messages of all topics",
            (({"topic": topic}, metric.count) for topic, metric in metrics.transaction_counts.items()),
        )
        yield self._counter(
            "rocketmq_commit_messages",
            "Total number of commit messages",
            (({"topic": topic}, finished.committed) for topic, finished in topics if finished.committed),
        )
        yield self._counter(
            "rocketmq_rollback_messages",
            "Total number of rollback messages",
            (({"topic": topic}, finished.rolled_back) for topic, finished in topics if finished.rolled_back),
        )
        # RocketMQ counts seconds under this name
        yield self._histogram(
            "rocketmq_finish_message_latency_milliseconds",
            "Transaction finish latency",
            (
                ({"topic": topic}, finished.ages.buckets(), finished.ages.sum)
                for topic, finished in topics
                if finished.committed
            ),
        )

    def _labels_of_topic(self, topic: str) -> dict[str, str]:
        config = self._broker.topic_config_manager.select_topic_config(topic)
        attributes = (config.attributes or {}) if config is not None else {}
        return {
            "topic": topic,
            "message_type": _TYPES_OF_SYSTEM_TOPICS.get(topic)
            or attributes.get(MESSAGE_TYPE, "normal").lower(),
            "is_system": _truth(is_system_topic(topic)),
        }

    def _by_topic_and_group(self, name: str) -> Iterator[tuple[dict[str, str], float]]:
        stats = self._broker.broker_stats_manager
        for key in stats.keys(name):
            topic, _, group = key.partition("@")
            item = stats.item(name, key)
            if item is None or _is_retry_or_dlq(topic):
                continue
            is_system = is_system_topic(topic) or _is_system_group(group)
            yield {"topic": topic, "consumer_group": group, "is_system": _truth(is_system)}, item.value

    def _store(self) -> Iterator[Family]:
        broker, storage = self._broker, self._storage
        store = broker.store
        try:
            disk = os.statvfs(broker.store_config.store_path_root_dir)
        except OSError:
            disk = None
        if disk is not None:
            used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
            yield self._one("rocketmq_storage_size_bytes", "Broker storage size", used, storage)
        behind = max(0, store.commit_log_files.max_wrote_position - store.commit_log_files.flushed_where)
        yield self._one("rocketmq_storage_flush_behind_bytes", "Broker flush behind bytes", behind, storage)
        behind = store.dispatch_behind_bytes
        yield self._one(
            "rocketmq_storage_dispatch_behind_bytes", "Broker dispatch behind bytes", behind, storage
        )
        yield self._counter(
            "mqlake_damaged_places",
            "Places of the store that were found damaged, and whose message consumers do not get",
            (
                ({"found_by": found_by, "topic": topic}, count)
                for found_by, topic, count in store.damage.counts()
            ),
        )
        earliest = earliest_message_time(store)
        if earliest > 0:
            reserved = broker.clock_ms() - earliest
            name = "rocketmq_storage_message_reserve_time_milliseconds"
            yield self._one(name, "Broker message reserve time", reserved, storage)

    def _archive(self) -> Iterator[Family]:
        archive = self._broker.store.archive
        if archive is None:
            return
        manifest, reader = archive.manifest, archive.reader
        for name, text, value in (
            ("begin_offset", "First physical offset that the archive has without a hole", manifest.begin),
            ("end_offset", "Physical offset up to which the archive has the log", manifest.end),
            ("size_bytes", "Bytes of the log in the archive", manifest.size),
            ("behind_bytes", "Bytes of the log that are flushed and not archived", archive.behind_bytes),
            ("cached_bytes", "Bytes of the archive in the cache on the disk", reader.cached_bytes),
        ):
            yield self._one(f"mqlake_archive_{name}", text, value, {})
        for name, text, value in (
            ("failed_rounds", "Rounds in which the log could not be archived", archive.failed_rounds),
            ("uploaded_bytes", "Bytes of the log that were sent to the archive", archive.uploaded_bytes),
            ("requests", "Requests for messages in the archive", reader.requests),
            ("failed_requests", "Those that failed", reader.failures),
            ("read_bytes", "Bytes that were read from the archive", reader.request_bytes),
        ):
            yield self._counter(f"mqlake_archive_{name}", text, [({}, value)])

    def _timers(self) -> Iterator[Family]:
        timers, storage = self._sources.timers, self._storage
        if timers is None:
            return
        for name, doc, value in (
            ("enqueue_lag", "Timer enqueue messages lag", timers.offset_behind),
            ("enqueue_latency_milliseconds", "Timer enqueue latency", timers.enqueue_behind_ms),
            ("dequeue_lag", "Timer dequeue messages lag", timers.dequeue_behind),
            ("dequeue_latency_milliseconds", "Timer dequeue latency", timers.read_behind_ms),
        ):
            yield self._one(f"rocketmq_timer_{name}", doc, value, storage)
        yield self._gauge(
            "rocketmq_timing_messages",
            "Current message number in timing",
            [(storage | {"topic": topic}, count) for topic, count in timers.metrics.timing_counts().items()],
        )
        for name, doc, totals in (
            ("rocketmq_timer_enqueue", "Total number of timer enqueue", timers.enqueued_by_topic),
            ("rocketmq_timer_dequeue", "Total number of timer dequeue", timers.delivered_by_topic),
        ):
            rows = [(storage | {"topic": topic}, count) for topic, count in list(totals.items())]
            yield self._counter(name, doc, rows)
        pending = zip(TIMER_BOUNDS_S, timers.pending_within(TIMER_BOUNDS_S), strict=True)
        yield self._gauge(
            "rocketmq_timer_message_snapshot",
            "Timer message distribution snapshot, only count timing messages in 24h.",
            [(storage | {"timer_bound_s": str(bound)}, count) for bound, count in pending],
        )
        for name, doc, count in (
            ("skipped", "Timer messages that could not be read or delivered", timers.skipped),
            ("moved", "Timer messages stored again because the disk was short", timers.rescue.moved),
            ("lost", "Timer messages deleted before they were due", timers.rescue.lost),
        ):
            yield self._counter(f"mqlake_timer_{name}", doc, [(storage, count)])

    def _pop(self) -> Iterator[Family]:
        service = self._sources.pop_service
        revive = service.revive_service
        topic = service.state.revive_log.topic
        yield self._counter(
            "rocketmq_pop_revive_out_message",
            "Total number of checkpoints and acknowledgements read from the revive topic",
            [
                ({"topic": topic, "revive_message_type": "CK"}, revive.checkpoints_in),
                ({"topic": topic, "revive_message_type": "ACK"}, revive.acknowledgements_in),
            ],
        )
        yield self._counter(
            "rocketmq_pop_revive_retry_messages",
            "Total number of messages put into retry topics",
            [
                ({"topic": name, "consumer_group": group}, count)
                for (name, group), count in list(revive.counts.items())
            ],
        )
        yield self._gauge(
            "rocketmq_pop_revive_lag",
            "Records of the revive topic that are not done",
            [({"queue_id": str(queue.queue_id)}, revive.lag(queue)) for queue in revive.queues],
        )
        yield self._gauge(
            "rocketmq_pop_revive_latency",
            "How long the first checkpoint has been over its time",
            [({"queue_id": str(queue.queue_id)}, revive.latency_ms(queue)) for queue in revive.queues],
        )
        pending = service.state.queues.pending_count
        yield self._one("rocketmq_pop_offset_buffer_size", "Pops whose checkpoint is not stored yet", pending)

    def _replication(self) -> Iterator[Family]:
        """RocketMQ's broker has no metrics of replication; what it logs and answers to 907 is here by these names."""
        broker = self._broker
        slaves = broker.slaves()
        if slaves:
            yield self._gauge(
                "mqlake_slave_fall_behind_bytes",
                "Bytes of this broker's log that a slave has not acknowledged",
                [({"slave": each.addr, "in_sync": str(each.in_sync).lower()}, each.diff) for each in slaves],
            )
            yield self._gauge(
                "mqlake_slave_before_deletion_bytes",
                "Bytes of this broker's log before those that a slave needs next",
                [({"slave": each.addr}, each.before_deletion) for each in slaves],
            )
        yield from self._failover(broker.failover_status())
        if broker.is_slave:
            behind, is_following = broker.behind_master()
            yield self._one(
                "mqlake_behind_master_bytes", "Bytes of the master's log that this slave lacks", behind, {}
            )
            yield self._one(
                "mqlake_follows_master", "1 while this slave follows its master", int(is_following), {}
            )

    def _failover(self, failover: Mapping[str, str]) -> Iterator[Family]:
        if not failover:
            return
        yield self._one(
            "mqlake_failover_epoch",
            "Epoch of the master that this broker follows, or is",
            int(failover.get("failoverEpoch", 0)),
            {},
        )
        yield self._one(
            "mqlake_failover_master",
            "1 while this broker is the elected master",
            int(failover["failoverState"] == "master"),
            {},
        )
        yield self._one(
            "mqlake_failover_lease_seconds",
            "Time that this master may go on without an answer of the failover service",
            int(failover.get("failoverLeaseMs", 0)) / 1000,
            {},
        )
        yield self._one(
            "mqlake_failover_in_sync",
            "Replicas that a message waits for, this master among them",
            len(failover.get("failoverInSync", "").split(",")) if "failoverInSync" in failover else 0,
            {},
        )
        yield self._one(
            "mqlake_failover_stuck",
            "1 while an operator has to look at why this replica does not take part",
            int(failover["failoverState"] == "stuck"),
            {},
        )

    def _access(self) -> Iterator[Family]:
        access = self._broker.access or self._broker.plain_access
        if access is not None:
            refused = list(access.audit.refused.items())
            yield self._counter(
                "mqlake_access_refused",
                "Requests that access control refused",
                (({"step": step, "request": request}, count) for (step, request), count in refused),
            )

    def _execution_times(self) -> Iterator[Family]:
        admin = self._sources.admin_processor
        for name, doc, times, labels in (
            (
                "topic",
                "The distribution of create topic time",
                admin.topic_create_times,
                {"is_system": "false"},
            ),
            ("consumer_group", "The distribution of create subscription time", admin.group_create_times, {}),
        ):
            yield self._histogram(
                f"rocketmq_{name}_create_execution_time_milliseconds",
                doc,
                (
                    ({"invocation_status": status, **labels}, histogram.buckets(), histogram.sum)
                    for status, histogram in times.by_status.items()
                ),
            )

    def _rpc(self) -> Iterator[Family]:
        histograms = self._rpc_latencies.histograms
        yield self._histogram(
            "rocketmq_rpc_latency_milliseconds",
            "Rpc latency",
            (
                (
                    {
                        "protocol_type": "remoting",
                        "request_code": _code_name(RequestCode, rpc.request_code),
                        "response_code": _code_name(ResponseCode, rpc.response_code),
                        "is_long_polling": _truth(rpc.is_long_polling),
                        "result": "oneway" if rpc.oneway else "success",
                    },
                    histogram.buckets(),
                    histogram.sum / 1_000_000,
                )
                for rpc, histogram in histograms.items()
            ),
        )

    async def _lag(self) -> AsyncIterator[Family]:
        broker = self._broker
        consumer_lag = ConsumerLag(broker, self._sources.pop_service.state)
        rows: list[tuple[dict[str, str], Lag]] = []
        for group in list(broker.subscription_group_manager.subscription_group_table):
            members = broker.consumer_manager.get_consumer_group_info(group, True)
            if members is None:
                continue
            for topic in list(members.subscription_table):
                if not topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
                    rows += self._lag_rows(consumer_lag, group, topic)
            await asyncio.sleep(0)

        def gauge(name: str, doc: str, value: Callable[[Lag], int]) -> Family:
            return self._gauge(
                f"rocketmq_consumer_{name}", doc, [(labels, value(lag)) for labels, lag in rows]
            )

        yield gauge("lag_messages", "Consumer lag messages", lambda lag: lag.messages)
        yield gauge("lag_latency_milliseconds", "Consumer lag time", lambda lag: lag.latency_ms)
        yield gauge("inflight_messages", "Consumer inflight messages", lambda lag: lag.in_flight)
        yield gauge("queueing_latency_milliseconds", "Consumer queueing time", lambda lag: lag.queueing_ms)
        yield gauge("ready_messages", "Consumer ready messages", lambda lag: lag.ready)

    def _lag_rows(
        self, consumer_lag: ConsumerLag, group: str, topic: str
    ) -> Iterator[tuple[dict[str, str], Lag]]:
        """Yields the lag of a topic, and of its retry topics if the group pops."""
        pops = consumer_lag.pops(group, topic)
        labels = {
            "consumer_group": group,
            "topic": topic,
            "is_retry": "false",
            "is_system": _truth(is_system_topic(topic) or _is_system_group(group)),
        }
        lag = consumer_lag.of(group, topic, pops=pops)
        if lag is None:
            return
        yield labels, lag
        for retry_topic in self._sources.pop_service.state.retry_topics(topic, group)[:1] if pops else ():
            of_retries = consumer_lag.of(group, retry_topic, pops=True)
            if of_retries is not None:
                yield labels | {"is_retry": "true"}, of_retries

    # --- from rows to metrics

    def _one(self, name: str, doc: str, value: float, labels: dict[str, str] | None = None) -> Family:
        return self._gauge(name, doc, [(labels or {}, value)])

    def _gauge(self, name: str, doc: str, rows: Iterable[tuple[dict[str, str], float]]) -> Family:
        return self._family("Gauge", name, doc, rows)

    def _counter(self, name: str, doc: str, rows: Iterable[tuple[dict[str, str], float]]) -> Family:
        """Each sample's name ends with _total."""
        return self._family("Counter", name, doc, rows)

    def _histogram(
        self,
        name: str,
        doc: str,
        rows: Iterable[tuple[dict[str, str], list[tuple[str, float]], float]],
    ) -> Family:
        """Rows of labels, (upper bound, values up to there) pairs and the sum."""
        return self._family("Histogram", name, doc, rows)

    def _family(self, kind: str, name: str, doc: str, rows: Iterable[tuple[Any, ...]]) -> Family:
        return Family(kind, name, doc, self._common, rows)


def _labels_of(text: str) -> dict[str, str]:
    """`metricsLabel`: `k:v,k:v`."""
    pairs = (pair.split(":") for pair in text.split(",") if pair)
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _code_name(codes: type[IntEnum], number: int) -> str:
    try:
        return codes(number).name.lower()
    except ValueError:
        return str(number)


def _is_retry_or_dlq(topic: str) -> bool:
    return topic.startswith((RETRY_GROUP_TOPIC_PREFIX, DLQ_GROUP_TOPIC_PREFIX))


def _is_system_group(group: str) -> bool:
    return group.lower().startswith(SYSTEM_GROUP_PREFIX)


def _truth(value: bool) -> str:
    return "true" if value else "false"
