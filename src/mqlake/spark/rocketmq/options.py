"""The options of the source and sink `rocketmq`: those of Spark's Kafka source, as far as RocketMQ has the thing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from mqlake.errors import ConfigError
from mqlake.lake.live.cluster import DEFAULT_GROUP, Cluster
from mqlake.lake.live.options import MODES, POP_INVISIBLE_S, ReadOptions
from mqlake.lake.offsets import PositionKind
from mqlake.spark.options import common, count, flag, listed, named, one_of
from mqlake.spark.positions import ENDING, STARTING, start_and_end

PLACE = ("namesrvAddr", "group", "accessKey", "secretKey")
READ_OPTIONS = (
    *PLACE,
    "subscribe",
    "subscribePattern",
    *STARTING,
    *ENDING,
    "columns",
    "includeBody",
    "unpack",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "groupIdForCommit",
    "popGroup",
    "popInvisibleTime",
    "mode",
)
WRITE_OPTIONS = (*PLACE, "topic", "delivery", "checkpointLocation", "queryName")
"""The last two are Spark's own, which it hands on."""


def read_options(options: Mapping[str, str], *, stream: bool | None = None) -> ReadOptions:
    """A batch begins at the earliest offsets, a stream at the latest, as with Kafka.

    `stream` None: it is not known yet which of them it will be, so that what only one can do passes.
    Raises UnknownKeyError and ConfigError.
    """
    given = named(options, READ_OPTIONS)
    if ("subscribe" in given) == ("subscribePattern" in given):
        raise ConfigError("one of the options 'subscribe' and 'subscribePattern' is needed, and not both")
    topics = tuple(listed("subscribe", given.get("subscribe", "")))
    pattern = given.get("subscribePattern")
    if pattern is None and not topics:
        raise ConfigError("option 'subscribe' names no topic")
    if pattern is not None:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"option 'subscribePattern' is {pattern!r}: {error}") from error
    pop_group = given.get("popGroup")
    if pop_group is not None and stream is False:
        raise ConfigError("option 'popGroup' is for streams: a batch has no end at which to acknowledge")
    if pop_group is None and "popInvisibleTime" in given:
        raise ConfigError("option 'popInvisibleTime' needs 'popGroup'")
    default = PositionKind.LATEST if stream else PositionKind.EARLIEST
    start, end = start_and_end(given, default, stream=stream)
    return ReadOptions(
        cluster=cluster_of(given),
        topics=topics,
        pattern=pattern,
        start=start,
        end=end,
        unpack=flag(given, "unpack", default=True),
        min_partitions=count(given, "minPartitions"),
        group_id_for_commit=given.get("groupIdForCommit"),
        pop_group=pop_group,
        pop_invisible_s=count(given, "popInvisibleTime") or POP_INVISIBLE_S,
        **common(given, modes=MODES),
    )


@dataclass(frozen=True)
class WriteOptions:
    """The target of rows; `topic` None: each row names it. `checkpoint`: of a stream whose rows go there
    exactly once, None for at least once."""

    cluster: Cluster
    topic: str | None = None
    checkpoint: str | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool) -> WriteOptions:
        """Raises UnknownKeyError and ConfigError."""
        given = named(options, WRITE_OPTIONS)
        checkpoint = None
        if one_of(given, "delivery", ("atLeastOnce", "exactlyOnce"), "atLeastOnce") == "exactlyOnce":
            if not stream:
                raise ConfigError(
                    "option 'delivery': exactlyOnce is for streams; a batch has no checkpoint that says whether it "
                    "was written before"
                )
            checkpoint = given.get("checkpointLocation", "").strip()
            if not checkpoint:
                raise ConfigError(
                    "option 'checkpointLocation' is missing: delivery=exactlyOnce keeps its decisions there, so it "
                    "has to be an option of the writer"
                )
        return cls(cluster_of(given), given.get("topic"), checkpoint)


def cluster_of(given: Mapping[str, str]) -> Cluster:
    if not given.get("namesrvAddr", "").strip():
        raise ConfigError("option 'namesrvAddr' is missing: host:port, several with ; between")
    return Cluster(
        given["namesrvAddr"],
        # brokers take offsets only of groups that they know, and know those that pull
        given.get("group", given.get("groupIdForCommit", DEFAULT_GROUP)),
        given.get("accessKey", ""),
        given.get("secretKey", ""),
    )
