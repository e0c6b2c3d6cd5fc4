"""Spark finds this module by its name and registers the source `rocketmq`; see mqlake.spark.automatic."""

from mqlake.spark.automatic import source

DefaultSource = source(__name__, "rocketmq", "mqlake.spark.rocketmq.source", "RocketMQDataSource")
