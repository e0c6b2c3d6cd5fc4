"""RocketBroker: FastStream's broker over one client of a RocketMQ or mqlake cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream.exceptions import IncorrectState
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.schema import BrokerSpec

from mqlake.adapters.faststream.command import Keys, RocketPublishCommand
from mqlake.adapters.faststream.config import Connection, RocketBrokerConfig
from mqlake.adapters.faststream.logs import DEFAULT_LEVEL, make_logger
from mqlake.adapters.faststream.message import RocketMessage
from mqlake.adapters.faststream.producer import RocketProducer
from mqlake.adapters.faststream.registrator import RocketRegistrator
from mqlake.adapters.faststream.subscriber import RocketSubscriber
from mqlake.adapters.faststream.transaction import CheckTransaction, Transaction, Transactions
from mqlake.adapters.patience import STARTUP_TIMEOUT_S, until_there
from mqlake.client.admin import Admin
from mqlake.client.config import ClientConfig
from mqlake.client.mq_client import MQClientInstance
from mqlake.client.produce.producer import ProducerConfig
from mqlake.client.produce.transaction_producer import LocalTransactionState, TransactionMQProducer
from mqlake.client.results import SendResult
from mqlake.errors import ConfigError, MqlakeError

DEFAULT_GROUP = "faststream"


class RocketBroker(RocketRegistrator, BrokerUsecase):
    _connection: Connection | None
    _mq_producer: TransactionMQProducer | None = None

    def __init__(
        self,
        where: ClientConfig | str = "127.0.0.1:9876",
        *,
        group: str = DEFAULT_GROUP,
        queues: int = 8,
        producer_config: ProducerConfig | None = None,
        check_transaction: CheckTransaction | None = None,
        startup_timeout_s: float | None = STARTUP_TIMEOUT_S,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        id_generator: Any = gen_cor_id,
        decoder: Any = None,
        parser: Any = None,
        codec: Any = None,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[RocketRegistrator] = (),
        security: Any = None,
        specification_url: str | Iterable[str] | None = None,
        protocol: str | None = None,
        protocol_version: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
        logger: Any = EMPTY,
        log_level: int = DEFAULT_LEVEL,
        apply_types: bool = True,
        serializer: Any = EMPTY,
        provider: Any = None,
        context: ContextRepo | None = None,
        underlying_driver_annotations: Any = None,
    ) -> None:
        """`where`: the name servers' address (several with `;` between), or a ClientConfig with keys, TLS, a namespace.

        group: of this service: its producers' group, and the beginning of its subscribers' groups.
        queues: of a topic on each broker, where a subscriber makes it.
        check_transaction: asked about a message of a transaction whose process is gone: True to commit, False to roll
            back, None when it is not known yet.
        startup_timeout_s: how long `connect` and `start` wait for a cluster that is away; None: for ever.
        The others are those of FastStream's brokers. `security` is for the AsyncAPI page: keys and TLS are in `where`.
        """
        self.where = ClientConfig(namesrv_addr=where) if isinstance(where, str) else where
        self._producer_config = producer_config
        self._transactions = Transactions(check_transaction)
        urls = [specification_url] if isinstance(specification_url, str) else list(specification_url or ())
        super().__init__(
            routers=routers,
            config=RocketBrokerConfig(
                group=group,
                queues=queues,
                startup_timeout_s=startup_timeout_s,
                producer=RocketProducer(parser, decoder),
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger(logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=id_generator,
                extra_context={"broker": self},
                underlying_driver_annotations=underlying_driver_annotations or {},
            ),
            specification=BrokerSpec(
                description=description,
                url=urls or self.where.namesrv_addr.replace(",", ";").split(";"),
                protocol=protocol or "rocketmq",
                protocol_version=protocol_version,
                tags=tags,
                security=security,
            ),
        )

    # --- life

    async def _connect(self) -> Connection:
        """MqlakeError when in all of the time no name server answers, or none knows a broker."""
        self._setup_logger()  # FastStream's own comes after this
        return await until_there(
            self._try_to_connect, self.config.broker_config.startup_timeout_s, self._warn
        )

    def _warn(self, text: str) -> None:
        self.config.logger.log(text, logging.WARNING, extra={"topic": "", "group": "", "message_id": ""})

    async def _try_to_connect(self) -> Connection:
        client, admin = MQClientInstance(self.where), Admin(self.where)
        producer = TransactionMQProducer(
            self.config.broker_config.group, client, self._transactions, self._producer_config
        )
        try:
            await admin.masters()
            await client.start()
            await producer.start()
        except BaseException:
            await admin.close()
            await client.close()
            raise
        self._mq_producer = producer
        return self._connected(Connection(client, admin), producer)

    def _connected(self, connection: Connection, producer: TransactionMQProducer | None) -> Connection:
        config = self.config.broker_config
        config.connection = connection
        config.producer.connect(producer, config.fd_config._serializer, config.broker_codec)
        return connection

    @property
    def connection(self) -> Connection:
        """IncorrectState before `connect`."""
        if self._connection is None:
            raise IncorrectState("the broker is not connected: start it, or use `async with broker`")
        return self._connection

    async def start(self) -> None:
        """ConfigError for subscribers of one group that subscribe unlike, which would lose messages."""
        check_groups(self.subscribers)
        await self.connect()
        self.config.logger.log(
            "Connection established", DEFAULT_LEVEL, extra={"topic": "", "group": "", "message_id": ""}
        )
        await super().start()

    async def stop(self, exc_type: Any = None, exc_val: Any = None, exc_tb: Any = None) -> None:
        try:
            await super().stop(exc_type, exc_val, exc_tb)
        finally:
            connection, self._connection = self._connection, None
            self.config.broker_config.connection = None
            self.config.broker_config.producer.disconnect()
            if self._mq_producer is not None:
                await self._mq_producer.close()
                self._mq_producer = None
            if connection is not None and connection.admin is not None and connection.client is not None:
                await connection.admin.close()
                await connection.client.close()

    async def ping(self, timeout: float | None = None) -> bool:
        """Returns True if a name server answers that knows a broker."""
        if self._connection is None or self._connection.admin is None:
            return False
        try:
            return bool(await asyncio.wait_for(self._connection.admin.masters(), timeout))
        except (MqlakeError, TimeoutError):
            return False

    # --- publishing

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        tag: str = "",
        keys: Keys = (),
        sharding_key: str = "",
        delay_s: float = 0.0,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> SendResult | None:
        """Sends a message and waits until the broker has it.

        tag: what subscribers choose by. keys: what the message is found by.
        sharding_key: messages with the same one go to the same queue and keep their order.
        delay_s: seconds that the broker keeps it back, if it has timers (timerWheelEnable=true).
        headers: properties of the message, as text.
        reply_to: a topic for what the handler returns.
        Raises SendError, MessageError, TopicNotFoundError, NoNameServerError.
        """
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            tag=tag,
            keys=keys,
            sharding_key=sharding_key,
            delay_s=delay_s,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        sent: SendResult | None = await self._basic_publish(cmd, producer=self.config.producer)
        return sent

    async def publish_batch(
        self,
        *messages: Any,
        topic: str = "",
        tag: str = "",
        keys: Keys = (),
        sharding_key: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
    ) -> SendResult | None:
        """Sends messages as one: all of them are stored, in order in one queue, or none.

        A RocketResponse among them has a tag, keys and headers of its own. Raises as `publish`.
        """
        if not messages:
            return None
        cmd = RocketPublishCommand(
            *messages,
            topic=topic,
            tag=tag,
            keys=keys,
            sharding_key=sharding_key,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            reply_to=reply_to,
            _publish_type=PublishType.PUBLISH,
        )
        sent: SendResult | None = await self._basic_publish_batch(cmd, producer=self.config.producer)
        return sent

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        tag: str = "",
        keys: Keys = (),
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float = 0.5,
    ) -> RocketMessage:
        """Sends a message and waits for what its handler returns. TimeoutError after `timeout` seconds."""
        cmd = RocketPublishCommand(
            message,
            topic=topic,
            tag=tag,
            keys=keys,
            headers=headers,
            correlation_id=correlation_id or self.config.id_generator(),
            timeout=timeout,
            _publish_type=PublishType.REQUEST,
        )
        reply: RocketMessage = await self._basic_request(cmd, producer=self.config.producer)
        return reply

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """A transaction: consumers get what this broker or its publishers publish in it when it ends without an
        exception, and never when it ends with one. ConfigError where the broker has no group of its own."""
        if self.config.broker_config.group == DEFAULT_GROUP:
            raise ConfigError(
                "transactions need a group of this service's own, as brokers ask its members what became of them: "
                'RocketBroker(group="shop")'
            )
        producer = self.config.producer
        transaction = Transaction(producer.producer, self._transactions)
        token = producer.transaction.set(transaction)
        state = LocalTransactionState.ROLLBACK_MESSAGE
        try:
            yield transaction
            state = LocalTransactionState.COMMIT_MESSAGE
        finally:
            producer.transaction.reset(token)
            await transaction.end(state)


def check_groups(subscribers: Iterable[RocketSubscriber]) -> None:
    known: dict[tuple[str, str], RocketSubscriber] = {}
    orderly: dict[str, RocketSubscriber] = {}
    for each in subscribers:
        other = known.setdefault((each.group, each.topic), each)
        if other.config.selector != each.config.selector:
            raise ConfigError(
                f"topic {each.topic}: two subscribers of group {each.group} subscribe to "
                f"{other.config.selector.expression!r} and {each.config.selector.expression!r}: either would "
                "lose what the other one gets. Give each a group of its own"
            )
        if each.orderly and orderly.setdefault(each.group, each) is not each:
            raise ConfigError(
                f"group {each.group} has two orderly subscribers in one broker: give each a group of its own"
            )
