"""RocketHook: a connection of Airflow, of the type rocketmq, as a client.

host, port          name servers; several hosts with `;` between
login, password     access key and secret key
schema              namespace
extra               tls: true; ca_certs, certfile, keyfile: files in PEM
"""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.providers.common.compat.sdk import BaseHook

from mqlake.base.clock import now_ms
from mqlake.client.admin import Admin
from mqlake.client.blocking import Producer
from mqlake.client.config import ClientConfig
from mqlake.client.loop_thread import LOOP_THREAD
from mqlake.client.results import SendResult
from mqlake.errors import MqlakeError
from mqlake.message import Message
from mqlake.remoting.tls import client_context

DEFAULT_PORT = 9876
GROUP = "airflow"
"""Group of producers."""


class RocketHook(BaseHook):
    conn_name_attr = "rocketmq_conn_id"
    default_conn_name = "rocketmq_default"
    conn_type = "rocketmq"
    hook_name = "RocketMQ"

    def __init__(self, rocketmq_conn_id: str = default_conn_name) -> None:
        super().__init__()
        self.rocketmq_conn_id = rocketmq_conn_id

    def config(self) -> ClientConfig:
        return config_of(self.get_connection(self.rocketmq_conn_id))

    async def aconfig(self) -> ClientConfig:
        """On an event loop, of a triggerer, say."""
        asking = getattr(self, "aget_connection", None)  # Airflow before 3.2 has none
        if asking is not None:
            return config_of(await asking(self.rocketmq_conn_id))
        return config_of(await asyncio.to_thread(self.get_connection, self.rocketmq_conn_id))

    def get_conn(self) -> Producer:
        """A producer that is started: `with hook.get_conn() as producer: ...`, or close it."""
        producer = Producer(GROUP, self.config())
        producer.start()
        return producer

    def send(
        self,
        topic: str,
        body: bytes | str,
        *,
        tags: str = "",
        keys: str | list[str] = "",
        properties: dict[str, str] | None = None,
        delay_s: float = 0.0,
    ) -> SendResult:
        """Sends one message and waits until the broker has it. SendError, MessageError, TopicNotFoundError,
        NoNameServerError."""
        data = body.encode() if isinstance(body, str) else body
        message = Message(topic, data, tags or None, keys or None, properties=dict(properties or {}))
        if delay_s:
            message.deliver_time_ms = now_ms() + round(delay_s * 1000)
        with self.get_conn() as producer:
            return producer.send(message)

    def test_connection(self) -> tuple[bool, str]:
        """For the button of Airflow's connection form."""

        async def brokers() -> str:
            async with Admin(self.config()) as admin:
                return ", ".join(f"{each.name} ({each.address})" for each in await admin.masters())

        try:
            return True, f"Brokers: {LOOP_THREAD.run(brokers())}"
        except (MqlakeError, OSError) as error:
            return False, f"{error}"

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": [],
            "relabeling": {
                "host": "Name servers",
                "login": "Access key",
                "password": "Secret key",
                "schema": "Namespace",
            },
            "placeholders": {
                "host": "127.0.0.1, or several with ; between",
                "port": f"{DEFAULT_PORT}",
                "extra": '{"tls": true, "ca_certs": "/etc/ssl/rocketmq-ca.pem"}',
            },
        }


def config_of(connection: Any) -> ClientConfig:
    """ConfigError for files of `extra` that cannot be read."""
    port = connection.port or DEFAULT_PORT
    hosts = [each.strip() for each in (connection.host or "127.0.0.1").replace(",", ";").split(";")]
    extra = connection.extra_dejson
    tls = None
    if extra.get("tls") or extra.get("ca_certs") or extra.get("certfile"):
        tls = client_context(
            trust_cert_path=extra.get("ca_certs", ""),
            cert_path=extra.get("certfile", ""),
            key_path=extra.get("keyfile", ""),
            verify=bool(extra.get("ca_certs")),
        )
    return ClientConfig(
        namesrv_addr=";".join(host if ":" in host else f"{host}:{port}" for host in hosts if host),
        namespace=connection.schema or "",
        access_key=connection.login or "",
        secret_key=connection.password or "",
        tls=tls,
    )
