"""`mqlake admin user` and `acl`, and `serve --auth`: each command at a broker with access control."""

from __future__ import annotations

import contextlib
import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from mqlake.auth.first_users import FIRST_USER
from mqlake.cli.main import cli
from tests.interop.brokers import FOR_TESTS, MQLAKE, MqlakeBroker, Server
from tests.waiting import PATIENCE_S, until

SETTINGS = {
    "brokerName": "broker-0",
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"inner-secret"}',
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("serve"), SETTINGS) as started:
        yield started


def invoke(broker: MqlakeBroker, *args: str, user: str = "admin", secret: str = "admin-secret") -> Result:
    env = {"NAMESRV_ADDR": broker.namesrv, "MQLAKE_ACCESS_KEY": user, "MQLAKE_SECRET_KEY": secret}
    return CliRunner().invoke(cli, ["admin", *args, "--timeout", str(PATIENCE_S)], env=env)


def shown(broker: MqlakeBroker, *args: str) -> str:
    result = invoke(broker, *args)
    assert result.exit_code == 0, result.output
    return result.stdout


def told(broker: MqlakeBroker, *args: str) -> Any:
    return json.loads(shown(broker, *args, "--json"))


def test_every_command(broker: MqlakeBroker, tmp_path: Path) -> None:
    assert "success" in shown(broker, "createUser", "-u", "alice", "-p", "alice-secret")
    made = told(broker, "user", "create", "-u", "bob", "-b", broker.address)
    assert len(made["password"]) > 20
    assert "secret" not in shown(broker, "user", "list")
    listed = told(broker, "listUser", "-c", "DefaultCluster", "--show-password")
    assert [each["username"] for each in listed] == ["admin", "alice", "bob", "inner"]
    assert listed[2]["password"] == made["password"]
    shown(broker, "updateUser", "-u", "bob", "-s", "disable")
    assert told(broker, "getUser", "-u", "bob")[0]["userStatus"] == "disable"
    assert invoke(broker, "user", "get", "-u", "carol").exit_code == 1
    shown(broker, "createAcl", "-s", "User:alice", "-r", "Topic:T*,Group:G", "-a", "Pub,Sub", "-d", "Allow",
          "-i", "127.0.0.0/8")  # fmt: skip
    shown(broker, "acl", "update", "-s", "alice", "-r", "Topic:T2", "-a", "All", "-d", "Deny")
    (acl,) = told(broker, "getAcl", "-s", "alice")
    assert [entry["resource"] for entry in acl["policies"][0]["entries"]] == [
        "Topic:T*",
        "Group:G",
        "Topic:T2",
    ]
    assert "Topic:T2" in shown(broker, "listAcl", "-r", "T2")
    assert told(broker, "user", "check")["same"] is True

    test = ("acl", "test", "--as", "alice")
    assert "allowed" in shown(broker, *test, "--topic", "T1", "--action", "PUB")
    refused = invoke(broker, *test, "--topic", "T2", "--action", "PUB")
    assert refused.exit_code == 1 and "the decision is deny" in refused.stdout
    assert [line.split()[0] for line in refused.stdout.splitlines()[1:]] == ["decides", "overruled"]
    assert invoke(broker, *test, "--topic", "T1", "--action", "PUB", "--from", "10.0.0.1").exit_code == 1
    assert invoke(broker, "acl", "test", "--as", "bob", "--topic", "T1", "--action", "PUB").exit_code == 1
    assert "no such action" in invoke(broker, *test, "--topic", "T1", "--action", "FLY").output

    path = tmp_path / "users.jsonl"
    shown(broker, "user", "export", str(path), "-b", broker.address)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and "alice-secret" in path.read_text()
    shown(broker, "deleteAcl", "-s", "alice", "-r", "Topic:T2", "--yes")
    shown(broker, "acl", "delete", "-s", "alice", "--yes")
    shown(broker, "deleteUser", "-u", "bob", "--yes")
    shown(broker, "user", "import", str(path))
    assert told(broker, "listUser", "-c", "DefaultCluster", "--show-password")[2]["userStatus"] == "disable"
    assert told(broker, "getAcl", "-s", "alice") == [acl]
    address = broker.address
    assert len(told(broker, "copyUser", "-f", address, "-t", address, "-u", "alice,bob")) == 2
    assert told(broker, "copyAcl", "-f", address, "-t", address) == ["alice"]


def test_who_may_not_is_refused(broker: MqlakeBroker) -> None:
    shown(broker, "createUser", "-u", "eve", "-p", "eve-secret")
    at = ("-b", broker.address)
    assert "no permission" in invoke(broker, "listUser", *at, user="eve", secret="eve-secret").output
    assert "check signature failed" in invoke(broker, "listUser", *at, secret="wrong").output
    assert "username cannot be null" in invoke(broker, "listUser", *at, user="", secret="").output


@pytest.mark.parametrize(
    "text", ["accessKey=admin\nsecretKey=admin-secret\n", "accessKey: admin\nsecretKey: 'admin-secret'"]
)
def test_credentials_may_come_from_a_file(broker: MqlakeBroker, tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    for how in (["--credentials", str(path)], []):
        env = {"NAMESRV_ADDR": broker.namesrv, "MQLAKE_CREDENTIALS": str(path)}
        result = CliRunner().invoke(cli, ["admin", "user", "list", *how], env=env)
        assert result.exit_code == 0 and "admin" in result.stdout, result.output
    path.write_text("accessKey=admin\n")
    result = CliRunner().invoke(cli, ["admin", "user", "list", "--credentials", str(path)])
    assert result.exit_code == 2 and "are needed" in result.output


def test_no_secret_is_in_the_log(broker: MqlakeBroker) -> None:
    invoke(broker, "listUser", "-b", broker.address, user="swapped-secret", secret="admin")
    log = broker.log.read_text()
    assert "access refused" in log and "secret" not in log


def command_lines() -> str:
    """Of all processes that any user of the machine can see."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it may have ended by now
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(lines)


def test_serve_with_auth_shows_the_secret_once_and_never_on_a_command_line(tmp_path: Path) -> None:
    command = [*MQLAKE, "serve", "--json", "--auth"]
    command += ["--store", str(tmp_path / "data"), "--port", "0", "--namesrv-port", "0", "--brokers", "2"]
    command += [f"--set={key}={value}" for key, value in FOR_TESTS.items()]

    def started() -> tuple[Server, dict[str, Any]]:
        server = Server(command, r'(\{.*"brokers".*\})', tmp_path / "log", {})
        return server, json.loads(server.match[1])

    server, place = started()
    try:
        assert place["user"] == FIRST_USER
        listing = command_lines()
        assert "--auth" in listing
        inner = json.loads((tmp_path / "data" / "auth" / "first-users.json").read_text())["mqlake-inner"]
        assert place["password"] not in listing and inner not in listing
        env = {
            "NAMESRV_ADDR": place["namesrv"],
            "MQLAKE_ACCESS_KEY": place["user"],
            "MQLAKE_SECRET_KEY": place["password"],
        }

        def works() -> bool:
            result = CliRunner().invoke(cli, ["admin", "user", "check", "--json"], env=env)
            return result.exit_code == 0 and len(json.loads(result.stdout)["brokers"]) == 2

        until(works)
    finally:
        server.end(15)
    log = (tmp_path / "log").read_text().replace(json.dumps(place), "")
    assert place["password"] not in log.replace(place["password"], "", 1)
    server, again = started()
    server.end(15)
    assert "password" not in again


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("-r", "Queue:a", "-a", "Pub"), "Queue:a: is no resource; Topic:name"),
        (("-r", "Topic:a", "-a", "Pub", "-i", "10.0.0.1,1.2.3.999"), "1.2.3.999: is no address"),
        (("-r", "Topic:a", "-a", "Any"), "can not be Any"),
    ],
)
def test_what_cannot_be_in_an_entry_is_named(
    broker: MqlakeBroker, options: tuple[str, ...], words: str
) -> None:
    result = invoke(broker, "acl", "create", "-s", "x", *options)
    assert result.exit_code == 2 and words in result.stderr
