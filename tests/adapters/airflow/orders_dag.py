"""A DAG of test_airflow: a sensor that is deferred, one that looks itself, and a task that sends what they got."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from mqlake.adapters.airflow.operator import RocketPublishOperator
from mqlake.adapters.airflow.sensor import RocketMessageSensor

with DAG("orders", schedule=None) as dag:
    deferred = RocketMessageSensor(
        task_id="deferred", topic="Orders", tags="new", deferrable=True, timeout=100
    )
    looking = RocketMessageSensor(
        task_id="looking", topic="Orders", sql="amount > 10", deferrable=False, poke_interval=1, timeout=100
    )

    @task
    def note(**context: Any) -> None:
        got = context["ti"].xcom_pull(task_ids=["deferred", "looking"])
        Path(os.environ["AIRFLOW_HOME"], "seen.json").write_text(json.dumps(list(got)))

    answer = RocketPublishOperator(
        task_id="answer",
        topic="Answers",
        body="{{ ti.xcom_pull(task_ids='deferred')['body'] }} packed",
        keys="answer-1",
    )
    [deferred, looking] >> note() >> answer
