"""Our tools and client at a RocketMQ broker that wants to know who asks (ACL 2.0): requests are signed."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from click.testing import CliRunner, Result

from mqlake.cli.main import cli
from mqlake.client import ClientConfig, ConsumeFromWhere, ConsumerConfig, Message, Producer, PushConsumer
from mqlake.errors import SendError
from mqlake.remoting.loop import run
from tests.interop.brokers import Broker, JavaBroker
from tests.waiting import until, until_async

pytestmark = pytest.mark.java
ACCESS_KEY, SECRET_KEY = "operator", "secret-1"
AUTH = "org.apache.rocketmq.auth."
SETTINGS = {
    "brokerName": "broker-0",
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationEnabled": "true",
    "authorizationProvider": f"{AUTH}authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": f"{AUTH}authorization.provider.LocalAuthorizationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": ACCESS_KEY, "password": SECRET_KEY}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with JavaBroker(tmp_path_factory.mktemp("java"), SETTINGS) as broker:
        yield broker


def mqlake(broker: Broker, *arguments: str, secret_key: str = SECRET_KEY) -> Result:
    keys = {"MQLAKE_ACCESS_KEY": ACCESS_KEY, "MQLAKE_SECRET_KEY": secret_key}
    return CliRunner().invoke(
        cli, arguments, env={"NAMESRV_ADDR": broker.namesrv, **(keys if secret_key else {})}
    )


def test_tools(broker: Broker):
    assert mqlake(broker, "admin", "topic", "create", "T", "-q", "2").exit_code == 0
    assert mqlake(broker, "produce", "T", "-m", "hello").exit_code == 0
    assert mqlake(broker, "consume", "T", "-e", "-f", "%s\n").stdout == "hello\n"
    assert mqlake(broker, "consume", "T", "-c", "1", "-g", "GID_a", "-f", "%s\n").stdout == "hello\n"

    def listed() -> bool:
        (row,) = json.loads(mqlake(broker, "admin", "cluster", "list", "--timeout", "60", "--json").stdout)
        return row["version"] == "V5_3_3" and "error" not in row

    # in its first second RocketMQ's broker has no figures yet, and answers with an exception
    until(listed)


@pytest.mark.parametrize("secret_key", ["", "wrong"])
def test_tools_that_are_not_let_in_say_why(broker: Broker, secret_key: str):
    for arguments in (("produce", "T", "-m", "x"), ("admin", "topic", "create", "U")):
        result = mqlake(broker, *arguments, secret_key=secret_key)
        assert result.exit_code == 1
        assert "(code 16)" in result.stderr.splitlines()[-1] and "Traceback" not in result.output
    listed = mqlake(broker, "admin", "cluster", "list", secret_key=secret_key)
    assert listed.exit_code == 0 and "V5_3_3" not in listed.stdout
    assert f"broker-0 at {broker.address} does not report its state: " in listed.stderr


def test_client(broker: Broker):
    where = ClientConfig(namesrv_addr=broker.namesrv, access_key=ACCESS_KEY, secret_key=SECRET_KEY)
    seen: list[bytes] = []

    async def main() -> None:
        first = ConsumerConfig(consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET)
        consumer = PushConsumer(
            "GID_b", where, lambda messages, _: seen.extend(m.body for m in messages), first
        )
        consumer.subscribe("V")
        async with Producer("p", where) as producer:
            await producer.send(Message("V", b"made by a send"))
            await producer.send_batch([Message("V", b"one"), Message("V", b"two")])
            async with consumer:
                await until_async(lambda: len(seen) == 3)
        async with Producer("p", broker.namesrv) as producer:
            with pytest.raises(SendError, match="code 16"):
                await producer.send(Message("V", b"who?"))

    run(main())
    assert sorted(seen) == [b"made by a send", b"one", b"two"]
