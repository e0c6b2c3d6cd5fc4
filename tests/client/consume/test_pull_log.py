"""What a consumer's log has of pulls that fail."""

from __future__ import annotations

import logging

import pytest

from mqlake.client.consume.pull_log import PullLog
from mqlake.errors import RemotingConnectError, ResponseError, TopicNotFoundError
from mqlake.remoting.bodies.topic import MessageQueue

QUEUES = [
    MessageQueue(topic="T", broker_name=broker, queue_id=number)
    for broker in ("a", "b")
    for number in range(8)
]


def test_a_broker_that_is_away_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Each of its queues wrote one a second, which nobody could read anything else beside."""
    log = PullLog("G")
    with caplog.at_level(logging.INFO, "mqlake"):
        for _ in range(20):
            for queue in QUEUES:
                log.failed(queue, RemotingConnectError("1.2.3.4:1", "refused"))
        assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
        assert "group G: pull of" in caplog.text and "refused" in caplog.text
        caplog.clear()
        for _ in range(2):
            for queue in QUEUES:
                log.worked(queue)
    assert len(caplog.records) == 2 and "works again (after 160 failures)" in caplog.text


def test_what_a_broker_refuses_is_said_of_each_queue(caplog: pytest.LogCaptureFixture) -> None:
    log = PullLog("G")
    with caplog.at_level(logging.INFO, "mqlake"):
        for queue in 3 * QUEUES[:2]:
            log.failed(queue, ResponseError(16, "no permission"))
        log.worked(QUEUES[0])
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3 and "no permission" in lines[1] and "works again" in lines[2]


def test_a_topic_that_nobody_has_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """A consumer of dead letters, which no group has yet, wrote it once a second for ever."""
    log = PullLog("G")
    missing = TopicNotFoundError("%DLQ%G", "no broker has it")
    with caplog.at_level(logging.INFO, "mqlake"):
        for _ in range(20):
            log.missing("%DLQ%G", missing)
            log.missing("%RETRY%G", TopicNotFoundError("%RETRY%G", "no broker has it"))
        assert [record.getMessage() for record in caplog.records] == [
            "group G: topic %DLQ%G: no broker has it"
        ]
        log.found("%DLQ%G")
        log.missing("%DLQ%G", missing)
    assert len(caplog.records) == 2
