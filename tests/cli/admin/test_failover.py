"""`mqlake serve --failover` and `mqlake admin failover`: a cluster of processes on a real etcd."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.broker.failover.etcd_cluster import EtcdCluster
from tests.cli.test_serve import MQLAKE, ready, send, serving, stopped
from tests.waiting import until

IN_GROUP = ("-b", "broker-0")


def test_the_master_is_moved_by_command_and_nothing_is_lost(tmp_path: Path) -> None:
    with EtcdCluster(tmp_path / "etcd", members=1) as etcd:
        url = f"{etcd.url}/serve"
        with serving(tmp_path / "data", "--json", "--replicas=1", f"--failover={url}") as process:
            where = ready(process)
            namesrv = where["namesrv"]

            def admin(*arguments: str) -> subprocess.CompletedProcess[str]:
                command = [*MQLAKE, "admin", "failover", *arguments, *IN_GROUP, "-n", namesrv]
                return subprocess.run(command, capture_output=True, text=True, check=False)

            def status(*arguments: str) -> dict[str, Any]:
                done = admin("status", "--json", *arguments)
                return json.loads(done.stdout) if done.returncode == 0 else {}

            until(lambda: status().get("inSync") == [0, 1], "both are in sync")
            before = status()
            assert (before["epoch"], before["master"], before["successor"]) == (1, 0, None)
            assert send(before["address"], "T", b"kept").code == 0

            refused = admin("elect", "7")
            assert (refused.returncode, "replica 7 is not in the in-sync set [0, 1]" in refused.stderr) == (
                1,
                True,
            )
            assert admin("exclude", "0").returncode == 1
            elected = admin("elect", "1")
            assert elected.returncode == 0, elected.stderr
            assert "moving    to replica 1" in elected.stdout
            until(
                lambda: status().get("master") == 1 and status().get("inSync") == [0, 1],
                "replica 1 is master",
            )
            after = status("--service", url, "-c", "DefaultCluster")
            assert after["epoch"] == 2 and after["address"] != before["address"]
            assert send(after["address"], "T", b"kept, too").code == 0
            assert [line.split()[:3] for line in admin("status").stdout.splitlines()[-2:]] == [
                ["0", "slave", "true"],
                ["1", "master", "true"],
            ]
            unknown = admin("status", "--service", url, "-c", "other")
            assert "knows no group other/broker-0" in unknown.stderr
            stopped(process)
