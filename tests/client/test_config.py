from __future__ import annotations

from mqlake.client.config import ClientConfig, build_client_id, local_ip


def test_client_ids() -> None:
    config = ClientConfig(client_ip="10.0.0.1", instance_name="i", unit_name="u")
    assert build_client_id(config) == "10.0.0.1@i@u"
    plain = ClientConfig(namesrv_addr="127.0.0.1:9876;10.0.0.1:9876")
    assert build_client_id(plain) != build_client_id(plain)
    assert build_client_id(plain).startswith("127.0.0.1@")
    assert local_ip("nonsense") == "127.0.0.1"
