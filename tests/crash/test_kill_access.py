"""SIGKILL during a change of users or acls: on disk is the old state or the new one, and what was answered stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from mqlake.auth.config import Credentials
from mqlake.auth.model import Acl, Action, Policy, PolicyType, UserType
from mqlake.auth.signed_client import SignedRemotingClient
from mqlake.auth.storage import Storage
from mqlake.client.api.access_api import AccessAPI
from mqlake.errors import RemotingError
from mqlake.remoting.loop import run
from tests.auth.people import entry
from tests.crash.access_victim import number_of
from tests.interop.brokers import MqlakeBroker

ROOT = Path(__file__).parents[2]
LIVES = 40 if "MQLAKE_CAMPAIGN" in os.environ else 2
ADMIN = Credentials("admin", "admin-secret")
SETTINGS = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
}


def victim(directory: Path, *point: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.crash.access_victim", str(directory), *point]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_at_every_call_of_a_write(tmp_path: Path) -> None:
    points = [f"{name}={moment}" for name in ("open", "fsync", "replace") for moment in ("before", "after")]
    output = victim(tmp_path, *points).communicate()[0]
    assert output.splitlines() == [f"{point} {int(signal.SIGKILL)}" for point in points]
    found = {point: number_of(Storage(str(tmp_path / point)).load()) for point in points}
    assert found == {point: int(point == "replace=after") for point in points}
    for point in points:  # and the next write is as ever, whatever was left beside the file
        storage = Storage(str(tmp_path / point))
        storage.write(storage.load())
        assert number_of(Storage(storage.directory).load()) == found[point]


def test_at_any_moment(tmp_path: Path) -> None:
    dice = random.Random(20)
    number = -1
    for _ in range(LIVES):
        child = victim(tmp_path)
        assert child.stdout is not None
        written = [int(child.stdout.readline()) for _ in range(dice.randrange(1, 60))]
        child.kill()
        written += [int(line) for line in child.communicate()[0].splitlines() if line]
        assert written[0] == number + 1
        number = number_of(Storage(str(tmp_path)).load())
        assert number in (written[-1], written[-1] + 1)


async def _change(address: str, life: int, answered: dict[str, Acl | None], asked: list[str]) -> None:
    """Makes users with their acls, one after another, until the broker is gone."""
    async with SignedRemotingClient(ADMIN) as client:
        api = AccessAPI(client)
        for number in range(100_000):
            name = f"user-{life}-{number}"
            policies = (Policy(PolicyType.CUSTOM, (entry(f"Topic:{name}", Action.PUB),)),)
            asked[:] = [name]
            await api.create_user(address, name, f"{name}-secret", UserType.NORMAL)
            answered[name] = None
            await api.update_acl(address, name, policies)
            answered[name] = Acl(name, policies)


def test_a_broker_keeps_every_user_and_acl_that_it_answered(tmp_path: Path) -> None:
    dice = random.Random(21)
    answered: dict[str, Acl | None] = {}
    asked: list[str] = []

    async def life(number: int) -> None:
        changing = asyncio.create_task(_change(broker.address, number, answered, asked))
        wanted = len(answered) + dice.randrange(2, 30)
        while len(answered) < wanted and not changing.done():
            await asyncio.sleep(dice.random() / 100)
        broker.kill()
        with contextlib.suppress(RemotingError, OSError):
            await changing

    with MqlakeBroker(tmp_path, SETTINGS) as broker:
        for number in range(LIVES):
            run(life(number))
            found = Storage(str(tmp_path / "store" / "broker-0" / "config")).load()
            for name, acl in answered.items():
                assert found.users[name].password == f"{name}-secret"
                # of the last one the acl may be there without an answer
                assert found.acls.get(name) == acl or (acl is None and [name] == asked)
            assert found.users.keys() - answered.keys() - {"admin"} <= set(asked)
            answered |= {name: found.acls.get(name) for name in found.users if name != "admin"}
            broker.start()
