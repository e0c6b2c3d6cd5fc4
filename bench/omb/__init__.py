"""OpenMessaging Benchmark, the one that others measure brokers with, on mqlake and on RocketMQ's broker in one run."""
