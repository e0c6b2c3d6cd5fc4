"""A topic of a store directory into a table, each message once.

The sources and sinks of mqlake are there without a call: Spark finds them by the modules pyspark_mqlake_… of the
installed package. A pipeline may not change the session, so `mqlake.spark.register` is not for here.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


def setting(name: str) -> str:
    """What spark-pipeline.yml says."""
    return spark.conf.get(f"mqlake.{name}")


dp.create_sink(
    "lake",
    f"mqlake-{setting('format')}",
    {
        "table": setting("table"),
        "warehouse": setting("warehouse"),
        "partitionBy": "storeTimestamp",
        "onReplay": setting("onReplay"),
    },
)


@dp.append_flow(target="lake")
def messages() -> DataFrame:
    """Any transformation that keeps topic, queueId and queueOffset lets a full refresh pass over what is there."""
    log = spark.readStream.format("commitlog").option("topics", setting("topic"))
    columns = ["topic", "queueId", "queueOffset", "physicalOffset", "keys", "tags", "body", "storeTimestamp"]
    return log.load(setting("store")).select(columns)
