"""Consumers: pull and push, how queues are shared out, where a group is in each queue."""
