"""What mqlake's clients wait for an answer: minutes in tests, where their 3 s are over before a busy machine has one.

RocketMQ's defaults are for users. A test that wants a limit gives it, and then has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mqlake.broker.controller as broker
import mqlake.metaq.client.producer as metaq
import mqlake.metaq.client.session as metaq_session
from mqlake.cli.clients import client_config
from mqlake.cli.produce import produce
from mqlake.client.api.acl import SignedRemotingClient
from mqlake.client.api.broker_api import BrokerAPI
from mqlake.client.api.client_api import MQClientAPI
from mqlake.client.api.name_servers import NameServers
from mqlake.client.blocking import Producer as BlockingProducer
from mqlake.client.config import ClientConfig
from mqlake.client.produce.producer import Producer, ProducerConfig
from mqlake.remoting.client import RemotingClient
from mqlake.remoting.connection import Connection
from tests.waiting import PATIENCE_S

DEFAULT_S = 3.0
WHO_WAITS: tuple[Callable[..., Any], ...] = (
    Connection.invoke,
    RemotingClient.__init__,
    RemotingClient.invoke,
    RemotingClient.call,
    SignedRemotingClient.invoke,
    BrokerAPI.__init__,
    MQClientAPI.__init__,
    NameServers.__init__,
    ClientConfig.__init__,
    ProducerConfig.__init__,
    Producer.request,
    BlockingProducer.request,
    client_config,
    metaq.MessageProducer.send_message,
    metaq.ProducerTransaction.send_message,
    metaq.ProducerXATransaction.send_message,
)


def be_patient() -> None:
    """From now on, in this process."""

    def longer(default: Any) -> Any:
        return PATIENCE_S if isinstance(default, float) and default == DEFAULT_S else default

    for function in WHO_WAITS:
        if function.__defaults__:
            function.__defaults__ = tuple(map(longer, function.__defaults__))
        if function.__kwdefaults__:
            function.__kwdefaults__ = {k: longer(each) for k, each in function.__kwdefaults__.items()}
    metaq.TRANSACTION_S = metaq_session.STATS_S = PATIENCE_S
    # a broker that has begun, or has made a topic, is known to its name server
    broker.REGISTER_START_WAIT_S = broker.REGISTER_WAIT_S = PATIENCE_S
    for option in produce.params:
        option.default = longer(option.default)
