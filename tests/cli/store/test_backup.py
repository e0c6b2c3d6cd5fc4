"""`mqlake store backup` and `restore`: beside a broker that is written to and killed, and in a script."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.client import ClientConfig, Message, Producer
from mqlake.client.admin import Admin
from mqlake.remoting.loop import run
from tests.interop.brokers import MqlakeBroker
from tests.store.small_store import fill, flip, log_file


def mqlake(*arguments: object) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def backed_up(store: Path, saved: Path) -> dict[str, int]:
    result = mqlake("store", "backup", store, "--to", saved, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, int] = json.loads(result.stdout)
    return found


def test_of_a_broker_that_is_written_to_and_killed(tmp_path: Path) -> None:
    """The restored broker has every message that was acknowledged before a backup began, and goes on."""
    store, saved = tmp_path / "live" / "store" / "broker-0", tmp_path / "saved"
    acknowledged: list[int] = []

    async def send(broker: MqlakeBroker, count: int) -> None:
        async with Producer("p", ClientConfig(namesrv_addr=broker.namesrv)) as producer:
            for _ in range(count):
                number = len(acknowledged)
                await producer.send(Message("T", b"%d" % number))
                acknowledged.append(number)

    def consumed(broker: MqlakeBroker, group: str) -> list[int]:
        result = CliRunner().invoke(
            cli, ["consume", "T", "-n", broker.namesrv, "-e", "-f", "%s\n", "-g", group]
        )
        assert result.exit_code == 0, result.output
        return sorted(int(line) for line in result.stdout.splitlines())

    with MqlakeBroker(tmp_path / "live") as broker:
        run(send(broker, 200))
        first = backed_up(store, saved)
        run(send(broker, 100))
        second = backed_up(store, saved)
        assert second["keptBytes"] == first["copiedBytes"] > 0 < second["copiedBytes"]
        broker.kill()
        third = backed_up(store, saved)
        assert third["end"] == second["end"]
    restored = tmp_path / "restored"
    result = mqlake("store", "restore", saved, "--to", restored / "store" / "broker-0")
    assert result.exit_code == 0 and "ready for a broker" in result.stdout
    assert mqlake("store", "verify", restored / "store" / "broker-0").exit_code == 0
    with MqlakeBroker(restored) as broker:
        assert consumed(broker, "G") == acknowledged
        run(send(broker, 1))

        async def queues() -> int:
            async with Admin(broker.namesrv) as admin:
                stats = await admin.examine_topic_stats("T")
                return sum(each.max_offset for each in stats.offset_table.values())

        assert run(queues()) == 301


def test_what_it_says(tmp_path: Path) -> None:
    store, saved = fill(tmp_path / "store"), tmp_path / "saved"
    said = mqlake("store", "backup", store, "--to", saved)
    assert said.exit_code == 0 and "offsets 0 to 54,572 in 4 files; 53.3 KiB copied" in said.stdout
    again = mqlake("store", "backup", store, "--to", saved)
    assert "0 B copied, 53.3 KiB there already, 16.0 KiB of it compared" in again.stdout
    assert mqlake("store", "verify", saved).stdout.endswith("all is well\n")
    path = log_file(saved, 2)
    flip(path, 100)
    found = mqlake("store", "verify", saved)
    assert found.exit_code == 1 and f"  {path}: CRC " in found.stdout and "1 file damaged" in found.stderr
    assert not json.loads(mqlake("store", "verify", saved, "--json").stdout)["ok"]
    mended = mqlake("store", "backup", store, "--to", saved, "--verify")
    assert mended.exit_code == 1 and f"copied again: {path}: CRC " in mended.stderr
    assert mqlake("store", "verify", saved).exit_code == 0
    other = mqlake("store", "backup", fill(tmp_path / "other", 7), "--to", saved)
    assert other.exit_code == 2 and "--overwrite" in other.stderr
    for arguments in (
        ("backup", tmp_path / "nowhere", "--to", saved),
        ("restore", store, "--to", tmp_path / "new"),
    ):
        result = mqlake("store", *arguments)
        assert result.exit_code == 1 and len(result.stderr.splitlines()) == 1
