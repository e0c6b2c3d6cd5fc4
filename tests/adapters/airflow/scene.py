"""What test_airflow runs with an Airflow's own Python.

python scene.py NAME     prints a line with JSON
"""

from __future__ import annotations

import json
import sys
from typing import Any


def dag_runs() -> dict[str, Any]:
    import os
    from pathlib import Path

    home = Path(os.environ["AIRFLOW_HOME"])
    sys.path.insert(0, str(home / "dags"))
    from orders_dag import dag

    run = dag.test()
    seen = json.loads((home / "seen.json").read_text())
    return {"state": str(getattr(run.state, "value", run.state)), "seen": seen}


def what_is_known() -> dict[str, Any]:
    """The provider as Airflow found it, the common interface, and a connection's test."""
    from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
    from airflow.providers_manager import ProvidersManager

    from mqlake.adapters.airflow.hook import RocketHook

    manager = ProvidersManager()
    away = RocketHook("away")
    by_scheme = MessageQueueTrigger(scheme="rocketmq", topic="Orders", group="shop", sql="a > 1")
    by_address = MessageQueueTrigger(queue="rocketmq://10.0.0.1:9876/Orders", group="shop")
    return {
        "provider": manager.providers["mqlake-client"].version,
        "hook": manager.hooks["rocketmq"].hook_class_name,
        "queues": manager.queue_class_names,
        "scheme": by_scheme.serialize(),
        "address": by_address.serialize(),
        "test": RocketHook().test_connection(),
        "away": away.test_connection(),
    }


def event_trigger() -> list[Any]:
    """Of a DAG's asset: event after event."""
    import asyncio

    from mqlake.adapters.airflow.trigger import RocketMessageTrigger

    async def three() -> list[Any]:
        found = []
        async for event in RocketMessageTrigger("Bytes", group="watcher").run():
            found.append(event.payload)
            if len(found) == 3:
                break
        return found

    return asyncio.run(three())


if __name__ == "__main__":
    scenes = {each.__name__: each for each in (dag_runs, what_is_known, event_trigger)}
    found = scenes[sys.argv[1]]()
    print(f"\nFOUND {json.dumps(found)}", flush=True)
