"""The Celery application that the workers of test_celery run."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery

import mqlake.adapters.kombu  # noqa: F401 - makes rocketmq:// known

app = Celery("tasks", broker=os.environ["BROKER"], backend=os.environ.get("BACKEND", "rpc://"))
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"visibility_timeout": 6},
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    worker_send_task_events=True,
    task_send_sent_event=True,
)


@app.task
def add(x: int, y: int) -> int:
    return x + y


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task(bind=True, max_retries=2)
def third_time(self: Any) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0)
    return int(self.request.retries)


@app.task
def note(path: str, text: str) -> None:
    """Appends a line, in one write."""
    with open(path, "a") as file:
        file.write(f"{text}\n")
