from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.remoting.bodies.topic import TopicRemappingDetailWrapper
from tests.broker.static_cluster import StaticCluster, on_static_brokers
from tests.waiting import PATIENCE_S


async def invoke(cluster: StaticCluster, *args: str) -> Result:
    command = ["admin", *args, "-n", cluster.namesrv_addr, "--timeout", str(PATIENCE_S)]
    return await asyncio.to_thread(CliRunner().invoke, cli, command)


async def told(cluster: StaticCluster, *args: str) -> Any:
    result = await invoke(cluster, *args, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_static_topic_is_made_moved_and_given_more_queues(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        made = await told(cluster, "topic", "static", "T", "-q", "2", "-b", "broker-a")
        assert made["leaders"] == {"0": "broker-a", "1": "broker-a"} and made["changed"]
        await cluster.send("broker-a", 2)
        moved = await told(cluster, "remappingStaticTopic", "-t", "T", "-b", "broker-b")
        assert set(moved["leaders"].values()) == {"broker-b"}
        assert await cluster.send("broker-b") == [10_000]
        files = [
            TopicRemappingDetailWrapper.from_json(Path(moved[n]).read_bytes()) for n in ("before", "after")
        ]
        assert [file.type for file in files] == ["CREATE_OR_UPDATE", "REMAPPING"]
        assert (files[1].broker_to_map_in, files[1].broker_to_map_out) == ({"broker-b"}, {"broker-a"})
        more = await invoke(cluster, "updateStaticTopic", "-t", "T", "-qn", "3", "-c", "DefaultCluster")
        assert more.exit_code == 0 and "T: 3 queues on broker-a, broker-b" in more.output

    on_static_brokers(tmp_path, scene)


def test_a_dry_run_changes_nothing_and_its_file_can_be_carried_out(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        plan = await told(cluster, "topic", "static", "T", "-q", "2", "-b", "broker-a", "--dry-run")
        assert not plan["changed"] and await cluster.admin.examine_topic_config_all("T") == {}
        done = await told(cluster, "topic", "static", "T", "-f", plan["after"])
        assert done["leaders"] == plan["leaders"]
        assert cluster.detail("broker-b").total_queues == 2  # a broker without queues knows of them
        again = await invoke(cluster, "topic", "static", "T", "-f", plan["after"])
        assert again.exit_code == 0
        old = await told(cluster, "topic", "remap", "T", "-b", "broker-b")
        refused = await invoke(cluster, "topic", "static", "T", "-f", plan["after"])
        assert refused.exit_code == 1 and "small epoch" in refused.output
        assert f"--map-file {plan['after']}" in refused.output
        forced = await invoke(cluster, "topic", "static", "T", "-f", old["before"], "--force")
        assert forced.exit_code == 0, forced.output
        assert await cluster.send("broker-a") == [0]

    on_static_brokers(tmp_path, scene)


def test_mistakes_are_told(tmp_path):
    async def scene(cluster: StaticCluster) -> None:
        await cluster.admin.create_topic("Plain")
        await cluster.map("T", 2, "broker-a")
        damaged = tmp_path / "damaged"
        damaged.write_text("{")
        for args, why in (
            (("static", "New", "-b", "broker-a"), "how many queues"),
            (("static", "New", "-q", "2"), "Name brokers"),
            (("static", "New", "-q", "2", "-b", "broker-x"), "broker-x"),
            (("static", "New", "-q", "2", "-c", "Elsewhere"), "Elsewhere"),
            (("static", "Plain", "-q", "2", "-b", "broker-a"), "ordinary topic"),
            (("static", "T", "-q", "2", "-b", "broker-a"), "only get more"),
            (("remap", "Plain", "-b", "broker-a"), "ordinary topic"),
            (("remap", "New", "-b", "broker-a"), "no broker has the topic New"),
            (("remap", "T", "-f", str(damaged)), "damaged"),
        ):
            result = await invoke(cluster, "topic", *args)
            assert result.exit_code in (1, 2) and why in result.output, (args, result.output)
            assert result.exception is None or isinstance(result.exception, SystemExit)

    on_static_brokers(tmp_path, scene)
