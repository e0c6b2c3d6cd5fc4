"""Broker: the state of a broker: its settings, store, topics, groups, offsets and clients.

    BrokerController      the ports and services, from start to stop
      └─ processors       one for each family of requests; each takes a Broker, and by name what else it needs
           └─ Broker      knows nothing of them

It reports events to listeners that are registered from above: `store.message_arriving_listeners`,
`topic_config_manager.on_change`, `consumer_manager.append_consumer_ids_change_listener`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from mqlake.auth.access import AccessControl
from mqlake.auth.plain_acl import PlainAccess, migrated, read_files
from mqlake.auth.requests import Context
from mqlake.auth.storage import Storage
from mqlake.base.clock import now_ms
from mqlake.base.net import format_address, ip_address_of
from mqlake.broker.config import BrokerConfig, parse_advertised
from mqlake.broker.mqtrace.hooks import Hooks
from mqlake.broker.state.clients import ConsumerManager, ProducerManager
from mqlake.broker.state.consumer_filter import ConsumerFilterManager
from mqlake.broker.state.consumer_offset import ConsumerOffsetManager
from mqlake.broker.state.rebalance_lock import RebalanceLockManager
from mqlake.broker.state.subscription_group import MessageRequestModeManager, SubscriptionGroupManager
from mqlake.broker.state.topic_config import TopicConfigManager
from mqlake.broker.state.topic_queue_mapping import TopicQueueMappingManager
from mqlake.errors import MqlakeError
from mqlake.message import PROPERTY_REAL_TOPIC, SCHEDULE_TOPIC, TRANS_HALF_TOPIC, Host
from mqlake.store.broker_stats import BrokerStatsManager
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.ha.ha_service import SlaveStatus
from mqlake.store.message_store import DefaultMessageStore

WAITING_TOPICS = frozenset({SCHEDULE_TOPIC, TRANS_HALF_TOPIC, "rmq_sys_wheel_timer"})
"""Topics in which messages wait for their real topic."""


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        store_config: MessageStoreConfig,
        clock_ms: Callable[[], int] = now_ms,
    ) -> None:
        self.config = config
        """Replaced by another object at each change, so read it from here each time."""
        self.store_config = store_config
        self.clock_ms = clock_ms
        self.port = 0
        """The port it listens on; 0 before the start."""
        self.ha_port = 0
        """The port for slaves; 0 when it does not listen for them."""
        self.is_master_away: Callable[[], bool] = lambda: False
        """Returns True on a slave that cannot reach its master, and so holds pulls itself."""
        self.slaves: Callable[[], Sequence[SlaveStatus]] = tuple
        """Returns the status of every slave connected to this master."""
        self.behind_master: Callable[[], tuple[int, bool]] = lambda: (0, False)
        """A slave's: bytes that it lacks of its master's log, and whether it follows."""
        self.failover_status: Callable[[], dict[str, str]] = dict
        """In a group with failover: state, epoch, in-sync set, for operators."""
        directory = store_config.config_dir
        self.broker_stats_manager = BrokerStatsManager(config.broker_cluster_name)
        self.topic_config_manager = TopicConfigManager(
            os.path.join(directory, "topics.json"), lambda: self.config
        )
        self.topic_queue_mapping_manager = TopicQueueMappingManager(
            os.path.join(directory, "topicQueueMapping.json"), config.broker_name
        )
        self.subscription_group_manager = SubscriptionGroupManager(
            os.path.join(directory, "subscriptionGroup.json"),
            config.auto_create_subscription_group,
            config.enable_create_sys_group,
        )
        self.consumer_offset_manager = ConsumerOffsetManager(
            os.path.join(directory, "consumerOffset.json"),
            config.consumer_offset_update_version_step,
            config.use_server_side_reset_offset,
        )
        self.consumer_filter_manager = ConsumerFilterManager(
            os.path.join(directory, "consumerFilter.json"),
            config.filter_data_clean_time_span,
            clock_ms,
            expected_groups=config.expect_consumer_num_use_filter,
            error_rate_percent=config.max_error_rate_of_bloom_filter,
        )
        self.message_request_mode_manager = MessageRequestModeManager(
            os.path.join(directory, "messageRequestMode.json")
        )
        self.rebalance_lock_manager = RebalanceLockManager()
        self.hooks = Hooks()
        self.producer_manager = ProducerManager(config.channel_expired_timeout, clock_ms)
        self.consumer_manager = ConsumerManager(
            config.channel_expired_timeout, config.subscription_expired_timeout, clock_ms
        )
        self.store = DefaultMessageStore(
            store_config,
            is_batch_topic=self.topic_config_manager.is_batch_topic,
            broker_stats=self.broker_stats_manager,
        )
        self.access: AccessControl | None = None
        """Users and acls; None where authenticationEnabled is off."""
        self.plain_access: PlainAccess | None = None
        """The accounts of plain_acl.yml; None where aclEnable is off."""
        context = Context(config.broker_cluster_name, self.topic_at)
        if config.auth.authentication_enabled:
            storage = Storage(config.auth.auth_config_path or directory)
            self.access = AccessControl(config.auth, storage, context)
        elif config.auth.acl_enable:
            self.plain_access = PlainAccess(
                config.auth.plain_acl_directory, context, config.auth.access_failures_max
            )

    def load_access(self) -> None:
        """Reads who may do what. ConfigError names file and line; OSError."""
        auth = self.config.auth
        if self.plain_access is not None:
            self.plain_access.load()
        elif self.access is not None and auth.migrate_auth_from_v1_enabled:
            accounts = read_files(auth.plain_acl_directory)
            self.access.load(lambda loaded: migrated(loaded, accounts))
        elif self.access is not None:
            self.access.load()

    def topic_at(self, physical_offset: int) -> str | None:
        """The topic of the message at an offset; of one that waits (a half message, a delayed one) its real topic. None
        if there is no message."""
        try:
            message = self.store.look_message_by_offset(physical_offset)
        except (MqlakeError, BlockingIOError):  # the latter: it has to be fetched from the archive first
            return None
        if message.topic in WAITING_TOPICS:
            return message.properties.get(PROPERTY_REAL_TOPIC) or message.topic
        return message.topic

    @property
    def is_slave(self) -> bool:
        return self.store_config.broker_role is BrokerRole.SLAVE

    @property
    def ha_server_addr(self) -> str:
        """The address that it registers for slaves: host:port."""
        return format_address((self.config.broker_ip2, self.ha_port or self.port + 1))

    @property
    def broker_addr(self) -> str:
        """The address that it registers with name servers: host:port."""
        advertised = parse_advertised(self.config.advertise)
        return format_address((self.config.advertised_host, advertised.port or self.port))

    @property
    def store_host(self) -> Host:
        """The store host of messages: an IP address, also when a name is advertised. ConfigError if it is unknown."""
        advertised = parse_advertised(self.config.advertise)
        return ip_address_of(self.config.advertised_host), advertised.port or self.port
