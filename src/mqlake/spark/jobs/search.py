"""search: messages by key, tag, topic, time, text in the body, or any condition of Spark's SQL.

What can be skipped is skipped by the source: by the heads of the log where there are any, else keys by the index,
topics and tags by the consume queues (see mqlake.lake.plan). Text and SQL are looked for in what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everywhere

import mqlake.spark
from mqlake.errors import ConfigError


@dataclass(frozen=True)
class Wanted:
    """All of what is given has to hold. Times are store times in ms, `until` is not in it.

    `keys`: one of them among KEYS, or as UNIQ_KEY. `tags`: one of them. `text`: somewhere in the body, as UTF-8.
    `sql`: over the columns of a row, such as `queueId = 1 and properties['colour'] = 'red'`.
    """

    topics: Sequence[str] = ()
    keys: Sequence[str] = ()
    tags: Sequence[str] = ()
    since: int | None = None
    until: int | None = None
    text: str | None = None
    sql: str | None = None

    @property
    def options(self) -> dict[str, object]:
        """Returns the options that `commitlog` knows by itself."""
        found: dict[str, object] = {}
        if self.topics:
            found["topics"] = list(self.topics)
        if self.keys:
            found["keys"] = list(self.keys)
        if self.since is not None:
            found["startingTimestamp"] = self.since
        if self.until is not None:
            found["endingTimestamp"] = self.until
        return found

    def within(self, messages: DataFrame) -> DataFrame:
        """Any messages that are wanted, also those of brokers or Parquet. ConfigError for invalid SQL."""
        conditions: list[Column] = []
        if self.topics:
            conditions.append(F.col("topic").isin(list(self.topics)))
        if self.keys:
            words = F.split("keys", " ")
            conditions.append(
                F.coalesce(F.arrays_overlap(words, F.array(*map(F.lit, self.keys))), F.lit(False))
                | F.coalesce(F.col("uniqKey").isin(list(self.keys)), F.lit(False))
            )
        if self.since is not None:
            conditions.append(F.col("storeTimestamp") >= F.timestamp_millis(F.lit(self.since)))
        if self.until is not None:
            conditions.append(F.col("storeTimestamp") < F.timestamp_millis(F.lit(self.until)))
        for condition in conditions:
            messages = messages.where(condition)
        return self.looked_into(messages)

    def looked_into(self, messages: DataFrame) -> DataFrame:
        """The conditions that the source does not apply: tags, text and SQL."""
        if self.tags:
            messages = messages.where(F.col("tags").isin(list(self.tags)))
        if self.text is not None:
            # as bytes: instr() steps over what looks like a character in a body that is no text
            messages = messages.where(F.contains("body", F.lit(self.text.encode(errors="surrogateescape"))))
        if self.sql is not None:
            try:
                messages = messages.where(self.sql)
                messages.schema  # noqa: B018 - a Connect session looks at the plan only when asked
            except (ParseException, AnalysisException) as error:
                raise ConfigError(f"--sql {self.sql!r}: {first_line(error)}") from error
        return messages


def search(spark: SparkSession, *paths: str, wanted: Wanted, **options: object) -> DataFrame:
    """The messages of these stores that are wanted, a row each; `options` as `commitlog` has them.

    Raises what mqlake.spark.read_log() raises, and ConfigError for invalid SQL.
    """
    return wanted.looked_into(mqlake.spark.read_log(spark, *paths, **{**wanted.options, **options}))


def first_line(error: BaseException) -> str:
    """Spark's message, without its plan and its stack."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
