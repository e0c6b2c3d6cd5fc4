"""RocketMQ's own integration tests (its module `test`, 5.3.3), run against `mqlake serve --brokers 3`.

    make rocketmq-tests ROCKETMQ_SOURCE=/path                 all of them
    make rocketmq-tests ROCKETMQ_SOURCE=/path TESTS=NotificationIT

The module is not in Maven Central, so its sources come from a checkout of apache/rocketmq at the tag
rocketmq-all-5.3.3, which is only read. Nearly all of it is compiled as it is. The tests start brokers in their own
process and look into them; `java/replaced` has classes of the same names that make requests of that (`module.py`).
"""
