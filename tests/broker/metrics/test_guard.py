"""guard: who may read the metrics, over HTTP at a real broker."""

from __future__ import annotations

import asyncio
import base64
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from mqlake.auth import state
from tests.broker.live import Peer, on_a_broker

PROM = {"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}
AUTH = {
    **PROM,
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
}


def get(port: int, user: str = "") -> tuple[int, str]:
    headers = {"Authorization": "Basic " + base64.b64encode(user.encode()).decode()} if user else {}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_metrics_need_a_user_who_may_get_the_cluster(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        assert peer.controller.metrics is not None and peer.controller.broker.access is not None
        port = peer.controller.metrics.port
        await peer.controller.broker.access.change(lambda s: state.create_user(s, "alice", "alice-secret"))
        expected = {
            "": 401,
            "admin:wrong": 401,
            "nobody:x": 401,
            "alice:alice-secret": 403,
            "admin:admin-secret": 200,
        }
        for user, status in expected.items():
            assert (await asyncio.to_thread(get, port, user))[0] == status, user
        _, text = await asyncio.to_thread(get, port, "admin:admin-secret")
        assert "mqlake_access_refused_total{" in text and 'step="authentication"' in text
        assert "secret" not in text

    on_a_broker(tmp_path, scene, **AUTH)


@pytest.mark.parametrize(("sources", "status"), [("10.0.0.0/8", 403), ("10.0.0.0/8,127.0.0.1", 200)])
def test_metrics_are_for_listed_addresses(tmp_path: Path, sources: str, status: int) -> None:
    async def scene(peer: Peer) -> None:
        assert peer.controller.metrics is not None
        assert (await asyncio.to_thread(get, peer.controller.metrics.port))[0] == status

    on_a_broker(tmp_path, scene, **PROM, metricsSourceIps=sources)


def test_metrics_may_be_open_on_purpose(tmp_path: Path) -> None:
    async def scene(peer: Peer) -> None:
        assert peer.controller.metrics is not None
        assert (await asyncio.to_thread(get, peer.controller.metrics.port))[0] == 200

    on_a_broker(tmp_path, scene, **AUTH, metricsAuthentication="false")
