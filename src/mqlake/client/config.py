"""ClientConfig: settings of every producer and consumer; client ids."""

from __future__ import annotations

import os
import socket
import ssl
import time
from dataclasses import dataclass, field

from mqlake.auth.config import Credentials
from mqlake.base.arguments import checked
from mqlake.base.net import parse_address
from mqlake.errors import RemotingConnectError
from mqlake.remoting.timeouts import DEFAULT_TIMEOUTS


@checked
@dataclass(frozen=True, kw_only=True)
class ClientConfig:
    """The address of a cluster, and how to talk to it. Names are those of RocketMQ's ClientConfig.

    namesrv_addr: host:port of a name server; several with `;` between.
    instance_name: part of the client id. Empty: the process and the time, so that no two are the same.
    client_ip: part of the client id. Empty: the address of this machine that name servers see.
    unit_name: last part of the client id, for clusters that are divided into units.
    namespace: put before the names of topics and groups: `namespace%topic`.
    tls: an ssl.SSLContext, as `mqlake.remoting.tls.client_context` makes it. None: no TLS.
    access_key: with `secret_key`, requests are signed (HmacSHA1) as brokers with access control want it.
    secret_key: the secret of `access_key`.
    security_token: sent with signed requests, for keys that a token goes with.
    poll_name_server_interval_s: seconds between two questions for the routes of topics in use.
    heartbeat_broker_interval_s: seconds between two heartbeats to each broker.
    persist_consumer_offset_interval_s: seconds between two commits of consumers' offsets.
    timeout_s: seconds for a request that has no time limit of its own.
    """

    namesrv_addr: str = "127.0.0.1:9876"
    instance_name: str = ""
    client_ip: str = ""
    unit_name: str = ""
    namespace: str = ""
    tls: ssl.SSLContext | None = None
    access_key: str = ""
    secret_key: str = ""
    security_token: str = ""
    poll_name_server_interval_s: float = 30.0
    heartbeat_broker_interval_s: float = 30.0
    persist_consumer_offset_interval_s: float = 5.0
    timeout_s: float = field(default_factory=lambda: DEFAULT_TIMEOUTS.request_s)

    @property
    def credentials(self) -> Credentials | None:
        """The credentials that sign requests; None: requests are not signed."""
        if not self.access_key:
            return None
        return Credentials(self.access_key, self.secret_key, self.security_token)


def build_client_id(config: ClientConfig) -> str:
    """`ip@instance[@unit]`, RocketMQ's form."""
    ip = config.client_ip or local_ip(config.namesrv_addr)
    instance = config.instance_name or f"{os.getpid()}#{time.monotonic_ns()}"
    return "@".join(part for part in (ip, instance, config.unit_name) if part)


def local_ip(namesrv_addr: str) -> str:
    """This machine's address on the way to the first name server; nothing is sent to find out."""
    try:
        host, port = parse_address(namesrv_addr.replace(",", ";").split(";")[0])
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, RemotingConnectError):
        return "127.0.0.1"
