from __future__ import annotations

import pytest

from mqlake.client.api.name_servers import NameServers, parse_addresses
from mqlake.errors import ConfigError, ResponseError
from mqlake.namesrv.config import NamesrvConfig
from mqlake.namesrv.server import NamesrvController
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.loop import run
from mqlake.remoting.server import RemotingServer


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("a:1", ["a:1"]),
        ("a:1;b:2", ["a:1", "b:2"]),
        (" a:1 , b:2;", ["a:1", "b:2"]),
        ("[::1]:9", ["[::1]:9"]),
    ],
)
def test_addresses(text, addresses):
    assert parse_addresses(text) == addresses


@pytest.mark.parametrize("text", [";", "127.0.0.1", "a:1;b", "a:port"])
def test_no_address(text):
    with pytest.raises(ConfigError, match="host:port"):
        parse_addresses(text)


def test_changes_reach_all_of_them(tmp_path):
    async def main() -> None:
        servers = [
            NamesrvController(
                NamesrvConfig(
                    listen_port=0,
                    bind_address="127.0.0.1",
                    kv_config_path=str(tmp_path / f"{n}.json"),
                    config_store_path=str(tmp_path / f"{n}.properties"),
                )
            )
            for n in range(2)
        ]
        for server in servers:
            await server.start()
        addresses = [f"127.0.0.1:{server.port}" for server in servers]
        async with RemotingClient() as client:
            both = NameServers(client, addresses)
            await both.put_kv_config_value("n", "k", "v")
            for address in addresses:
                one = NameServers(client, [address])
                assert await one.get_kv_config_value("n", "k") == "v"
                assert await one.get_kv_list_by_namespace("n") == {"k": "v"}
            await both.delete_kv_config_value("n", "k")
            with pytest.raises(ResponseError):
                await both.get_kv_config_value("n", "k")
            await both.update_name_server_config({"orderMessageEnable": "true"})
            configs = await both.get_name_server_config()
            assert [config["orderMessageEnable"] for config in configs.values()] == ["true", "true"]
            assert await both.wipe_write_perm_of_broker("b") == dict.fromkeys(addresses, 0)
            assert await both.add_write_perm_of_broker("b") == dict.fromkeys(addresses, 0)
            assert await both.get_topic_list() == await both.get_topics_by_cluster("c") == set()
            await both.delete_topic_in_nameserver("T")
            assert (await both.get_broker_cluster_info()).broker_addr_table == {}
        for server in servers:
            await server.stop()

    run(main())


def test_another_server_s_port_is_recognised():
    async def main() -> None:
        server = RemotingServer()
        await server.start("127.0.0.1", 0)
        try:
            async with RemotingClient() as client:
                names = NameServers(client, [f"127.0.0.1:{server.port}"])
                with pytest.raises(
                    ResponseError, match=f"is 127.0.0.1:{server.port} a broker's port"
                ) as error:
                    await names.get_topic_route_info("T")
                assert error.value.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        finally:
            await server.stop()

    run(main())
