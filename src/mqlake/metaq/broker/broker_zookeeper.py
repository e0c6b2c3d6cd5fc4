"""BrokerZooKeeper: registers the broker and its topics in ZooKeeper.

After a session has expired everything is registered again; a changed configuration file updates the checksum node and
the nodes of the topics. `stop` removes everything.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from mqlake.errors import ConfigError, MqlakeError, RemotingError
from mqlake.metaq.config.meta_config import MetaConfig, TopicConfig
from mqlake.metaq.zookeeper.paths import MetaZookeeper, TopicBroker, broker_node
from mqlake.metaq.zookeeper.session import RETRY_S, ZkSession

logger = logging.getLogger(__name__)

POLL_S = 0.1


class BrokerZooKeeper:
    """`start` and `stop` block; the other calls hand the work to the session's thread."""

    def __init__(
        self, config: MetaConfig, broker_string: str, topics: Callable[[], list[str]], *, slave_id: int = -1
    ) -> None:
        """`topics`: configured ones and those with messages. `slave_id`: 0 or more for an asynchronous slave."""
        self.config = config
        self.broker_string = broker_string
        self.paths = MetaZookeeper(config.zookeeper.zk_root)
        self.session: ZkSession | None = None
        self._topics = topics
        self._broker_id = config.system.broker_id
        self._is_slave = slave_id >= 0
        self._node = broker_node(self._broker_id, slave_id)
        self._own_path = (
            self.paths.slave(self._broker_id, slave_id)
            if self._is_slave
            else self.paths.master(self._broker_id)
        )
        self._registered: dict[str, TopicConfig] = {}
        self._stopping = threading.Event()
        self._withdrawn = False

    def start(self, before: Callable[[ZkSession], object] = lambda session: None) -> None:
        """Registers everything; `before` runs first, with the session.

        RemotingError without ZooKeeper; ConfigError if another broker keeps the id.
        """
        if not self.config.zookeeper.zk_enable:
            return
        self.session = session = ZkSession(self.config.zookeeper)
        try:
            before(session)
            self.session.submit(self._register_everything).result()
        except BaseException:
            self.session.close()
            self.session = None
            raise
        self.session.on_new_session(self._session_began)
        self.config.add_property_change_listener("configFileChecksum", self._checksum_changed)
        self.config.add_property_change_listener("topics", self._topics_changed)

    def stop(self) -> None:
        """Removes everything. Failures are logged: the nodes end with the session."""
        self.config.remove_property_change_listener(self._checksum_changed)
        self.config.remove_property_change_listener(self._topics_changed)
        self._stopping.set()
        if self.session is not None:
            try:
                if self.session.connected:
                    self.session.submit(self._unregister_everything).result()
            except MqlakeError as error:
                logger.warning("not removed from ZooKeeper: %s", error)
            self.session.close()
            self.session = None

    def withdraw(self) -> None:
        """Removes everything until `come_back`."""
        self._withdrawn = True
        self._later(self._unregister_everything)

    def come_back(self) -> None:
        """Registers everything again."""
        self._withdrawn = False
        self._later(self._register_everything)

    def topic_created(self, topic: str) -> None:
        """Registers a topic that has got its first message."""
        self._later(lambda: self._register_topic(topic))

    def _checksum_changed(self) -> None:
        self._later(self._register_checksum)

    def _topics_changed(self) -> None:
        self._later(self._register_topics)

    def _later(self, job: Callable[[], None]) -> None:
        session = self.session
        if session is None:
            return

        def run() -> None:
            while not self._stopping.is_set():
                try:
                    job()
                    return
                except RemotingError as error:
                    logger.error("%s; trying again", error)
                    self._stopping.wait(RETRY_S)
                except MqlakeError as error:
                    logger.error("%s", error)
                    return

        session.submit(run)

    # --- in the session's thread

    @property
    def _session(self) -> ZkSession:
        assert self.session is not None
        return self.session

    def _session_began(self) -> None:
        if not self._withdrawn:
            self._register_everything()

    def _register_everything(self) -> None:
        self._register_broker()
        self._register_checksum()
        self._registered.clear()
        self._register_topics()

    def _register_broker(self) -> None:
        own = self._own_path
        address = self.broker_string.encode()
        wait_max_s = self.config.zookeeper.zk_session_timeout_ms / 1000 + 2 * POLL_S
        deadline = time.monotonic() + wait_max_s
        waiting = False
        while not self._session.create_ephemeral(own, address):
            if self._session.is_own(own):
                break
            holder = (self._session.read(own) or b"").decode("utf-8", "replace")
            if not waiting:
                logger.warning("%s still belongs to %s; waiting for its session to end", own, holder)
                waiting = True
            if self._stopping.wait(POLL_S) or time.monotonic() > deadline:
                raise ConfigError(
                    f"{own} belongs to {holder}: another broker has brokerId {self._broker_id} "
                    f"and has kept it for {wait_max_s:.0f} s"
                )
        if not self._is_slave:
            self._session.put_persistent(self.paths.broker_id(self._broker_id), address)

    def _register_checksum(self) -> None:
        if self._is_slave:
            return
        value = str(self.config.config_file_checksum).encode()
        self._session.put_ephemeral(self.paths.master_config_checksum(self._broker_id), value)

    def _register_topics(self) -> None:
        for topic in self._topics():
            self._register_topic(topic)

    def _register_topic(self, topic: str) -> None:
        config = self.config.topic_config(topic)
        if self._registered.get(topic) == config:
            return
        session, node = self._session, self._node
        if topic in self._registered:
            self._unregister_topic(topic)
        value = TopicBroker(node, config.num_partitions).encode()
        session.put_ephemeral(
            f"{self.paths.broker_topics}/{topic}/{node}", str(config.num_partitions).encode()
        )
        for accepts, path in (
            (config.accept_publish, self.paths.topic_pub(topic)),
            (config.accept_subscribe, self.paths.topic_sub(topic)),
        ):
            if accepts:
                session.put_ephemeral(f"{path}/{node}", value)
            else:
                session.delete(f"{path}/{node}")
        self._registered[topic] = config

    def _unregister_topic(self, topic: str) -> None:
        for parent in (self.paths.broker_topics, self.paths.broker_topics_pub, self.paths.broker_topics_sub):
            self._session.delete(f"{parent}/{topic}/{self._node}")

    def _unregister_everything(self) -> None:
        session = self._session
        for topic in self._registered:
            self._unregister_topic(topic)
        self._registered.clear()
        session.delete(self._own_path)
        if self._is_slave:
            return
        session.delete(self.paths.master_config_checksum(self._broker_id))
        if not session.delete(self.paths.broker_id(self._broker_id)):
            session.put(self.paths.broker_id(self._broker_id), b"")  # its slaves are below it
