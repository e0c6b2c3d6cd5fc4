"""follow: a name server knows the users that a broker beside it writes, and keeps them while the file is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.auth import follow
from mqlake.auth.follow import FollowingAccess
from mqlake.auth.requests import Context
from mqlake.auth.storage import Storage
from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from mqlake.errors import ConfigError, ResponseError
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from tests.auth.people import in_a_loop, state
from tests.auth.test_access import ON, answer, request


def test_changes_of_the_file_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mqlake.auth.config import AuthConfig

    settings = {**ON, "initAuthenticationUser": '{"username":"root","password":"pw"}'}
    access = FollowingAccess(AuthConfig().replaced(settings), Storage(str(tmp_path)), Context(""))
    access.load()
    assert answer(access, request(206, "root", "pw")) == "ok"
    assert answer(access, request(206, "admin", "admin-secret")) == "User:admin is not found."
    assert not (tmp_path / "accessControl.jsonl").exists(), "a name server writes nothing"
    writer = Storage(str(tmp_path))
    writer.write(state())
    assert answer(access, request(206, "admin", "admin-secret")) == "ok"
    assert answer(access, request(206, "root", "pw")) == "ok"
    monkeypatch.setattr(follow, "LOOK_S", 0.0)
    good = Path(writer.path).read_bytes()
    Path(writer.path).write_bytes(b"{}\n")
    assert answer(access, request(206, "admin", "admin-secret")) == "ok"
    with pytest.raises(ConfigError):
        access.load()
    Path(writer.path).write_bytes(good)
    assert answer(access, request(206, "alice", "alice-secret")) != "ok"


@in_a_loop
async def test_a_name_server_enforces(tmp_path: Path) -> None:
    Storage(str(tmp_path)).write(state())
    config, _ = NamesrvConfig.from_mapping(
        {
            **ON,
            "listenPort": "0",
            "bindAddress": "127.0.0.1",
            "kvConfigPath": str(tmp_path / "kv.json"),
            "authConfigPath": str(tmp_path),
        }
    )
    server = NamesrvController(config)
    await server.start()
    try:
        where = f"127.0.0.1:{server.port}"
        for keys, text in (({}, "username cannot be null"), ({"alice": "alice-secret"}, "no permission")):
            for user, secret in keys.items() or [("", "")]:
                async with Admin(
                    ClientConfig(namesrv_addr=where, access_key=user, secret_key=secret)
                ) as admin:
                    with pytest.raises(ResponseError, match=text):
                        await admin.name_servers.put_kv_config_value("N", "k", "v")
        good = ClientConfig(namesrv_addr=where, access_key="admin", secret_key="admin-secret")
        async with Admin(good) as admin:
            await admin.name_servers.put_kv_config_value("N", "k", "v")
            assert await admin.name_servers.get_kv_config_value("N", "k") == "v"
    finally:
        await server.stop()
