"""Brokers: rates, disk, replication and settings."""

from __future__ import annotations

import asyncio
from typing import Any

from mqlake.client.admin import Broker
from mqlake.client.overview import ha_status, latest_rate, replicas_object, runtime_info
from mqlake.console.ask import Ask
from mqlake.console.queries.groups import is_users
from mqlake.console.trends import POINTS
from mqlake.errors import MqlakeError, UnknownKeyError

SECRET_WORDS = ("password", "secret", "credential", "accesskey", "authenticationuser", "token")
"""Settings with one of these in their names are never shown."""


async def brokers(ask: Ask) -> dict[str, Any]:
    """All brokers: address, version, rates, disk, oldest message and replication."""
    found = await ask.admin.list_brokers()
    rows, place = ask.paged(found)
    return {"brokers": await asyncio.gather(*(_row(ask, broker) for broker in rows)), "place": place}


async def _row(ask: Ask, broker: Broker) -> dict[str, Any]:
    (state, error), ha = await asyncio.gather(
        runtime_info(ask.admin, broker.address), ha_status(ask.admin, broker.address)
    )
    sample = ask.cluster.sampler.brokers.get(broker.address)
    return {
        "cluster": broker.cluster,
        "name": broker.name,
        "brokerId": broker.broker_id,
        "address": broker.address,
        "error": error,
        "version": state.get("brokerVersionDesc", ""),
        "inTps": latest_rate(state.get("putTps")),
        "outTps": latest_rate(state.get("getTransferredTps")),
        "diskRatio": _share(state.get("commitLogDiskRatio")),
        "earliestMessage": int(state.get("earliestMessageTimeStamp") or -1),
        "replicas": replicas_object(ha),
        "rateIn": sample.rate_in.values() if sample else [],
        "rateOut": sample.rate_out.values() if sample else [],
    }


def _share(text: str | None) -> float:
    try:
        return float(text or 0)
    except ValueError:
        return 0.0


async def broker(ask: Ask) -> dict[str, Any]:
    """One broker: its figures under RocketMQ's names, and who follows it."""
    found = await _find(ask)
    row = await _row(ask, found)
    state, _ = await runtime_info(ask.admin, found.address)
    interval_s = ask.cluster.sampler.interval_s
    return {"broker": row, "state": dict(sorted(state.items())), "intervalSeconds": interval_s}


async def _find(ask: Ask) -> Broker:
    """The broker of an address. UnknownKeyError: requests go to no address that the cluster does not name."""
    address = ask.need("address")
    known = {broker.address: broker for broker in await ask.admin.list_brokers()}
    if address not in known:
        raise UnknownKeyError(address, known, what="broker")
    return known[address]


def is_secret(key: str) -> bool:
    return any(word in key.lower() for word in SECRET_WORDS)


async def settings(ask: Ask) -> dict[str, Any]:
    """The settings of one broker whose name contains `filter`, and what waits for its next start; no secrets."""
    found = await _find(ask)
    brokers = ask.admin.brokers
    config, pending = await asyncio.gather(
        brokers.get_broker_config(found.address), brokers.get_pending_settings(found.address)
    )
    part = ask.text("filter").lower()
    shown = sorted(
        (key, value) for key, value in config.items() if part in key.lower() and not is_secret(key)
    )
    rows, place = ask.paged(shown)
    return {
        "name": found.name,
        "address": found.address,
        "filter": ask.text("filter"),
        "settings": dict(rows),
        "pendingRestart": {key: value for key, value in pending.items() if not is_secret(key)},
        "hidden": sum(map(is_secret, config)),
        "place": place,
    }


async def change_setting(ask: Ask) -> dict[str, Any]:
    """Shows what would change; with `confirm` changes it."""
    ask.check_changes()
    found, key, value = await _find(ask), ask.need("key"), ask.text("value")
    if is_secret(key):
        raise MqlakeError(f"{key} holds a secret: change it in the broker's own file")
    before = (await ask.admin.brokers.get_broker_config(found.address)).get(key)
    change = {"key": key, "before": before, "after": value, "done": False, "remark": ""}
    if ask.flag("confirm"):
        change["remark"] = await ask.admin.brokers.update_broker_config(found.address, {key: value})
        change["done"] = True
    return await settings(ask) | {"change": change}


async def overview(ask: Ask) -> dict[str, Any]:
    """The cluster on one page: brokers, rates over time, and the groups that are furthest behind."""
    answer: dict[str, Any] = {
        "hasCluster": ask.context.cluster is not None,
        "stores": list(ask.context.stores),
    }
    if ask.context.cluster is None:
        return answer
    sampler = ask.cluster.sampler
    found = await ask.admin.list_brokers()
    rows = await asyncio.gather(*(_row(ask, broker) for broker in found[:20]))
    groups = {name: trend for name, trend in sampler.trends.groups.items() if is_users(name)}
    furthest = sorted(groups.items(), key=lambda item: -item[1].behind)[:10]
    lag = sum(sample.behind for sample in groups.values())
    return answer | {
        "brokers": rows,
        "moreBrokers": max(0, len(found) - 20),
        "inTps": sum(row["inTps"] for row in rows),
        "outTps": sum(row["outTps"] for row in rows),
        "rateIn": _sum([row["rateIn"] for row in rows]),
        "rateOut": _sum([row["rateOut"] for row in rows]),
        "behind": lag,
        "groups": [
            {"name": name, "behind": each.behind, "rate": each.rate, "history": each.history.values(POINTS)}
            for name, each in furthest
        ],
        "knownGroups": len(groups),
        "sampledAt": sampler.sampled_at,
        "intervalSeconds": sampler.interval_s,
        "trouble": sampler.trouble,
    }


def _sum(lines: list[list[float]]) -> list[float]:
    """Lines of several brokers as one; they end at the same moment."""
    longest = max(map(len, lines), default=0)
    padded = [[0.0] * (longest - len(line)) + line for line in lines]
    return [sum(values) for values in zip(*padded, strict=True)]
