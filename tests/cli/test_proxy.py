"""`mqlake proxy`, and the gRPC endpoint of `mqlake serve` and `mqlake broker`."""

from __future__ import annotations

import datetime
import hmac
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest
from click.testing import CliRunner

from mqlake.cli import grpc_endpoint
from mqlake.cli.main import cli
from mqlake.proxy.v2 import service_pb2 as v2
from mqlake.proxy.v2.definition_pb2 import Code, Resource

MQLAKE = [sys.executable, "-m", "mqlake"]
SMALL = ["--set", "mappedFileSizeCommitLog=4m", "--set", "maxIndexNum=4000", "--set", "maxHashSlotNum=1000"]


class Running:
    """A command that prints a line of JSON when it is ready."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*MQLAKE, *arguments, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.stop()[1])
        self.where: dict[str, Any] = json.loads(line)

    def stop(self) -> tuple[int, str]:
        self.process.terminate()
        _, err = self.process.communicate(timeout=180)
        return self.process.returncode, err


def signed(user: str, secret: str) -> list[tuple[str, str]]:
    """Metadata of a request."""
    date_time = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    signature = hmac.digest(secret.encode(), date_time.encode(), "sha1").hex().upper()
    return [
        ("x-mq-date-time", date_time),
        (
            "authorization",
            f"MQv2-HMAC-SHA1 Credential={user}, SignedHeaders=x-mq-date-time, Signature={signature}",
        ),
    ]


def route(address: str, topic: str, *metadata: tuple[str, str]) -> v2.QueryRouteResponse:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(
            "/apache.rocketmq.v2.MessagingService/QueryRoute",
            request_serializer=v2.QueryRouteRequest.SerializeToString,
            response_deserializer=v2.QueryRouteResponse.FromString,
        )
        answer: v2.QueryRouteResponse = call(
            v2.QueryRouteRequest(topic=Resource(name=topic)),
            metadata=[("x-mq-client-id", "c"), *metadata],
            timeout=60,
        )
        return answer


def endpoints_of(address: str, *metadata: tuple[str, str]) -> set[tuple[str, str, int]]:
    """(broker, host, port) of each queue of a topic that every broker has."""
    answer = route(address, "TBW102", *metadata)
    assert answer.status.code == Code.OK, answer.status
    return {
        (queue.broker.name, at.host, at.port)
        for queue in answer.message_queues
        for at in queue.broker.endpoints.addresses
    }


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_serve_answers_grpc_clients_at_the_advertised_address(tmp_path: Path):
    serve = Running(
        "serve", "--store", str(tmp_path), "--port=0", "--namesrv-port=0", "--advertise=127.0.0.7", *SMALL
    )
    try:
        grpc_address = serve.where["grpc"]
        assert endpoints_of(grpc_address) == {("broker-0", "127.0.0.7", port_of(grpc_address))}
        assert serve.where["brokers"][0].startswith("127.0.0.7:")
    finally:
        end = serve.stop()
    assert end == (0, "")


def test_several_brokers_have_one_endpoint_and_a_proxy_can_be_another(tmp_path: Path):
    """Both check who asks, with the users of the brokers."""
    serve = Running(
        "serve", "--store", str(tmp_path), "--port=0", "--namesrv-port=0", "--brokers=2", "--auth", *SMALL
    )
    user = ("admin", serve.where["password"])
    keys = ["--access-key", user[0], "--secret-key", user[1]]
    place = ["--port=0", "--host=127.0.0.1", "-n", serve.where["namesrv"], "--advertise=nat.example"]
    proxy = Running("proxy", *place, "--auth", *keys)
    try:
        for running, host in ((serve, "127.0.0.1"), (proxy, "nat.example")):
            address = running.where["grpc"]
            found = endpoints_of(address, *signed(*user))
            assert found == {(f"broker-{i}", host, port_of(address)) for i in range(2)}
            for metadata in ([], signed(user[0], "wrong"), signed("nobody", user[1])):
                assert route(address, "TBW102", *metadata).status.code == Code.UNAUTHORIZED
    finally:
        ends = [proxy.stop()[0], serve.stop()[0]]
    assert ends == [0, 0]


def test_a_proxy_that_checks_needs_a_key_of_its_own():
    result = CliRunner().invoke(cli, ["proxy", "--auth"])
    assert result.exit_code == 2
    assert "--auth needs --access-key and the secret of a super user" in result.output


def test_a_broker_serves_it_when_its_configuration_says_so(tmp_path: Path):
    broker = Running(
        "broker",
        "--host=127.0.0.1",
        f"--set=storePathRootDir={tmp_path}",
        "--set=listenPort=0",
        "--set=grpcServerPort=0",
        *SMALL,
    )
    status, err = broker.stop()
    assert status == 0
    assert "gRPC: 127.0.0.1:" in err


def test_without_grpcio_its_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setattr(grpc_endpoint, "grpc_is_installed", lambda: False)
    for arguments in (["proxy"], ["serve", "--store", str(tmp_path), "--grpc-port=0"]):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 3
        assert "pip install 'mqlake[grpc]'" in result.output


def test_a_port_that_is_taken_is_an_error_for_who_asked_for_it(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        command = ["serve", "--store", str(tmp_path), "--port=0", "--namesrv-port=0", *SMALL]
        result = CliRunner().invoke(cli, [*command, f"--grpc-port={port}"])
        assert result.exit_code == 2
        assert "use --grpc-port to choose another port" in result.output
        result = CliRunner().invoke(cli, ["proxy", "--host=127.0.0.1", f"--port={port}"])
        assert result.exit_code == 2
        assert "Address already in use; use --port to choose another port" in result.output


@pytest.mark.parametrize("text", ["a b", "host:99999", "host:1:2:3", "::1", "[::1"])
def test_addresses_that_cannot_be_advertised(text: str, tmp_path: Path):
    result = CliRunner().invoke(cli, ["serve", "--store", str(tmp_path), "--advertise", text])
    assert result.exit_code == 2
    assert "HOST:PORT:GRPC_PORT" in result.output
