"""Describes the provider for Airflow's discovery: packaging/client/pyproject.toml names this function as entry
point."""

from __future__ import annotations

from typing import Any

DISTRIBUTION = "mqlake-client"
PACKAGE = "mqlake.adapters.airflow"


def get_provider_info() -> dict[str, Any]:
    integration = "RocketMQ"
    return {
        "package-name": DISTRIBUTION,
        "name": "RocketMQ (mqlake)",
        "description": "Messages of RocketMQ and mqlake: send them, wait for them, start DAGs by them.",
        "integrations": [
            {
                "integration-name": integration,
                "external-doc-url": "https://rocketmq.apache.org/",
                "tags": ["service"],
            }
        ],
        "connection-types": [
            {
                "connection-type": "rocketmq",
                "hook-class-name": f"{PACKAGE}.hook.RocketHook",
                "hook-name": integration,
            }
        ],
        "hooks": [{"integration-name": integration, "python-modules": [f"{PACKAGE}.hook"]}],
        "operators": [{"integration-name": integration, "python-modules": [f"{PACKAGE}.operator"]}],
        "sensors": [{"integration-name": integration, "python-modules": [f"{PACKAGE}.sensor"]}],
        "triggers": [{"integration-name": integration, "python-modules": [f"{PACKAGE}.trigger"]}],
        "queues": [f"{PACKAGE}.queue.RocketMessageQueueProvider"],
    }
