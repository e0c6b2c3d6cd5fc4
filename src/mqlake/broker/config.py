"""The settings of a broker: RocketMQ's BrokerConfig and NettyServerConfig, with the defaults of RocketMQ 5.3.3.

A broker.conf is one flat file for the broker and its store. `read_settings` makes both configurations from it and
reports the keys that it does not act on: RocketMQ's in one remark, unknown ones in one each, with the nearest known
key. It refuses keys that are dangerous to ignore (base.rocketmq_keys).
"""

# ruff: noqa: RUF009 - every field is declared by setting(), which is dataclasses.field() with its Setting

from __future__ import annotations

import dataclasses
import enum
import functools
import os
import re
import socket
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from mqlake.auth import config as auth_settings
from mqlake.auth.config import AuthConfig
from mqlake.base import keys_since_5_4
from mqlake.base.net import PORT_MAX, local_address, parse_address
from mqlake.base.rocketmq_keys import AUTH_KEYS, BROKER_KEYS, REMOTING_KEYS, STORE_KEYS
from mqlake.base.settings import LONG_MAX, KnownKeys, Setting, Settings, setting, settings_of, text_of
from mqlake.broker.failover.service import parse_where
from mqlake.errors import ConfigError, UnknownKeyError
from mqlake.message import TRACE_TOPIC
from mqlake.remoting.bodies.client import MessageRequestMode
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.bodies.topic import PERM_READ, PERM_WRITE
from mqlake.remoting.connection import Limits
from mqlake.remoting.tls import KEYS as TLS_KEYS
from mqlake.remoting.tls import TlsConfig, read_tls
from mqlake.store import config as store_settings
from mqlake.store.config import BrokerRole, MessageStoreConfig
from mqlake.store.file_sizes import fit_to_files


class Advertised(NamedTuple):
    """A broker's address as clients get it: the host may be empty, ports are 0 where nothing is said."""

    host: str = ""
    port: int = 0
    grpc_port: int = 0


@functools.lru_cache(maxsize=64)
def parse_advertised(text: str) -> Advertised:
    """`HOST[:PORT[:GRPC_PORT]]`, an IPv6 host in brackets. ConfigError."""
    match = _ADVERTISED.fullmatch(text.strip())
    ports = [int(port or 0) for port in match.group("port", "grpc_port")] if match is not None else []
    if match is None or max(ports) > PORT_MAX:
        raise ConfigError(
            f"advertise={text}: HOST, HOST:PORT or HOST:PORT:GRPC_PORT is needed, an IPv6 address in brackets"
        )
    return Advertised((match["host"] or "").strip("[]"), *ports)


_ADVERTISED = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)?(?::(?P<port>\d{1,5}))?(?::(?P<grpc_port>\d{1,5}))?",
    re.ASCII,
)


class MetricsExporterType(enum.Enum):
    DISABLE = "DISABLE"
    OTLP_GRPC = "OTLP_GRPC"
    PROM = "PROM"
    LOG = "LOG"


class GrpcServerKind(enum.Enum):
    """The HTTP/2 implementation that the gRPC endpoint uses."""

    nghttp2 = "nghttp2"
    grpcio = "grpcio"


def _default_broker_name() -> str:
    return socket.gethostname() or "DEFAULT_BROKER"


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokerConfig(Settings):
    """The settings of one broker. Raises ConfigError at construction when a value cannot be used."""

    broker_cluster_name: str = setting("DefaultCluster", "Cluster that the broker belongs to.")
    broker_name: str = setting(
        "local host name",
        "Name of the broker; a master and its slaves share it.",
        factory=_default_broker_name,
    )
    broker_id: int = setting(MASTER_ID, "0 for a master, more for a slave.", high=LONG_MAX)
    broker_ip1: str = setting(
        "local address",
        "Address that name servers report to clients.",
        factory=local_address,
        key="brokerIP1",
    )
    broker_ip2: str = setting(
        "local address", "Address that name servers report to slaves.", factory=local_address, key="brokerIP2"
    )
    namesrv_addr: str = setting(
        "$NAMESRV_ADDR",
        "Name servers to register with: `host:port` with `;` between.",
        factory=lambda: os.environ.get("NAMESRV_ADDR", ""),
    )
    broker_config_path: str = setting(
        "", "The broker.conf, to which settings changed at run time are written."
    )
    config_black_list: str = setting(
        "configBlackList;brokerConfigPath", "Keys that cannot be changed at run time; `;` between."
    )

    advertise: str = setting(
        "",
        "Address for clients, in place of brokerIP1 and of the ports: `HOST[:PORT[:GRPC_PORT]]`.",
        own=True,
    )
    grpc_server_port: int = setting(
        -1, "Port for RocketMQ 5's gRPC clients; 0: any free one, -1: none.", low=-1, high=PORT_MAX, own=True
    )
    grpc_server: GrpcServerKind = setting(
        GrpcServerKind.nghttp2,
        "Who speaks gRPC with these clients. Without the package ngh2 it is grpcio.",
        own=True,
    )
    heads: bool = setting(
        False,
        "Write the heads of each full log file as Parquet, by a child process at the lowest priority; needs "
        "mqlake[arrow]. See lake.md.",
        own=True,
        live=True,
    )
    listen_port: int = setting(
        10911, "Port to listen on; 0: any free one. The VIP port is two below.", high=PORT_MAX
    )
    bind_address: str = setting("0.0.0.0", "Address to listen on; 0.0.0.0: all of this machine's.")
    server_channel_max_idle_time_seconds: int = setting(
        120, "Time without a byte after which a connection is closed.", unit="s"
    )

    register_name_server_period: int = setting(
        30_000, "Time between two registrations; held to 10000..60000.", unit="ms", low=1, live=True
    )
    register_broker_timeout_mills: int = setting(
        24_000, "Time limit for a name server to answer a registration.", unit="ms", low=1, live=True
    )
    force_register: bool = setting(
        True, "Register at each period; false: only if the name server has another version.", live=True
    )
    enable_single_topic_register: bool = setting(False, "Register only the route of a new topic.", live=True)
    enable_split_registration: bool = setting(False, "Register many topics in several requests.", live=True)
    split_registration_size: int = setting(
        800, "Topics in one request of a split registration.", unit="topics", low=1, live=True
    )

    broker_permission: int = setting(
        PERM_READ | PERM_WRITE, "6 read and write, 4 read only, 2 write only.", high=7, live=True
    )
    failover: str = setting(
        "",
        "Consensus service that says which replica is master: `etcd://HOST:PORT,HOST:PORT,...`; empty: none, a slave "
        "becomes master by command.",
        own=True,
    )
    failover_lease: int = setting(
        3000,
        "Time for which a master may go on without an answer of that service; another takes over soon after.",
        unit="ms",
        low=500,
        high=600_000,
        own=True,
    )
    failover_member_timeout: int = setting(
        2000,
        "Time that a replica may lag before messages do not wait for it, and it cannot become master.",
        unit="ms",
        low=100,
        high=600_000,
        own=True,
    )
    default_topic_queue_nums: int = setting(
        8, "Queues of TBW102, and so the maximum for a topic that is created by a send.", low=1, live=True
    )
    auto_create_topic_enable: bool = setting(True, "A send to an unknown topic creates it.", live=True)
    enable_mixed_message_type: bool = setting(
        False,
        "Topics may have the attribute message.type=MIXED: messages of any type for gRPC clients.",
        live=True,
    )
    cluster_topic_enable: bool = setting(True, "The topic with the cluster's name can be read and written.")
    broker_topic_enable: bool = setting(True, "The topic with the broker's name can be read and written.")
    auto_create_subscription_group: bool = setting(
        True, "The first request of an unknown group creates it.", live=True
    )
    enable_create_sys_group: bool = setting(
        True, "Create groups that begin with CID_RMQ_SYS_ in any case.", live=True
    )
    validate_system_topic_when_update_topic: bool = setting(
        True, "Operators cannot change system topics.", live=True
    )
    clear_retry_topic_when_delete_topic: bool = setting(
        True, "Deleting a topic deletes its pop retry topics as well.", live=True
    )
    trace_topic_enable: bool = setting(False, "Create the topic for message traces at the start.")
    msg_trace_topic_name: str = setting(TRACE_TOPIC, "The topic for message traces.")
    broker_message_trace_enable: bool = setting(
        False,
        "Trace every send and delivery in msgTraceTopicName; sends and pulls then take the slow path.",
        own=True,
    )
    revive_queue_num: int = setting(8, "Queues of the topic for pop's checkpoints.", low=1)
    revive_interval: int = setting(
        1000, "Time between two looks for messages whose invisible time is over.", unit="ms", low=1, live=True
    )
    pop_polling_size: int = setting(
        1024, "Pops of a group that wait at one queue, or at all queues of a topic.", live=True
    )
    max_pop_polling_size: int = setting(100_000, "Pops that wait, in total.", live=True)
    pop_from_retry_probability: int = setting(
        20, "How often a pop looks for messages to retry first.", unit="%", high=100, live=True
    )
    pop_from_retry_probability_for_priority: int = setting(
        0, "The same for topics with message.type=PRIORITY.", unit="%", high=100, live=True, own="5.4 or 5.5"
    )
    priority_order_asc: bool = setting(
        True,
        "In topics with message.type=PRIORITY a higher number is more urgent.",
        live=True,
        own="5.4 or 5.5",
    )
    enable_retry_topic_v2: bool = setting(
        False, "Name pop's retry topics %RETRY%G+T instead of %RETRY%G_T.", live=True
    )
    retrieve_message_from_pop_retry_topic_v1: bool = setting(
        True, "With enableRetryTopicV2, pop from %RETRY%G_T as well.", live=True
    )
    use_separate_retry_queue: bool = setting(
        False, "A message keeps its queue id in its pop retry topic.", live=True, own="5.4 or 5.5"
    )
    pop_response_return_actual_retry_topic: bool = setting(
        False, "Popped retries carry the name of the retry topic instead of the topic's.", live=True
    )
    init_pop_offset_by_check_msg_in_mem: bool = setting(
        True,
        "A new group that wants only new messages begins at 0 while the queue's first message is in memory.",
        live=True,
    )
    enable_pop_message_threshold: bool = setting(False, "Apply popInflightMessageThreshold.", live=True)
    pop_inflight_message_threshold: int = setting(
        10_000,
        "Messages in flight of a group in a queue at which no more are popped.",
        unit="messages",
        high=LONG_MAX,
        live=True,
    )
    server_load_balancer_enable: bool = setting(
        True, "Divide queues among the members of a group that asks; false: each gets all.", live=True
    )
    default_message_request_mode: MessageRequestMode = setting(
        MessageRequestMode.PULL,
        "How groups get messages for which setConsumeMode has set nothing.",
        live=True,
    )
    default_pop_share_queue_num: int = setting(
        -1,
        "Other members' queues that each member pops from as well, in defaultMessageRequestMode; -1: all.",
        low=-1,
        live=True,
    )
    load_balance_poll_name_server_interval: int = setting(
        30_000,
        "Time for which the route of a topic whose queues are divided is kept.",
        unit="ms",
        low=1,
        live=True,
    )

    region_id: str = setting("DefaultRegion", "Region named in message traces.", live=True)
    trace_on: bool = setting(True, "Tell producers to write traces.", live=True)
    start_accept_send_request_time_stamp: int = setting(
        0, "Refuse sends until this time (ms since 1970).", unit="ms", high=LONG_MAX, live=True
    )
    reject_transaction_message: bool = setting(False, "Refuse transactional messages.", live=True)
    transaction_time_out: int = setting(
        6000,
        "Age at which an open half message is checked; CHECK_IMMUNITY_TIME_IN_SECONDS of a message takes precedence.",
        unit="ms",
        high=LONG_MAX,
    )
    transaction_check_max: int = setting(
        15, "Checks of a half message before it goes to TRANS_CHECK_MAX_TIME_TOPIC.", low=1
    )
    transaction_check_interval: int = setting(
        30_000, "Time between two checks for open half messages.", unit="ms", low=1, high=LONG_MAX, live=True
    )
    transaction_op_msg_max_size: int = setting(
        4096,
        "Size at which an op message is written at once; smaller ones wait for more entries.",
        unit="bytes",
        low=1,
    )
    transaction_op_batch_interval: int = setting(
        3000, "Maximum time that an op message waits for more entries.", unit="ms", low=1
    )
    transaction_metric_flush_interval: int = setting(
        3000, "Time between two writes of config/transactionMetrics.", unit="ms", low=1, high=LONG_MAX
    )
    store_reply_message_enable: bool = setting(
        True, "Store replies to requests as well as pushing them.", live=True
    )
    broker_fast_failure_enable: bool = setting(
        True, "Answer SYSTEM_BUSY to sends that waited too long for their turn.", live=True
    )
    wait_time_mills_in_send_queue: int = setting(
        200,
        "Waiting time above which sends are answered SYSTEM_BUSY if the sends before them waited as long.",
        unit="ms",
        high=LONG_MAX,
        live=True,
    )

    recall_message_enable: bool = setting(
        False, "Producers may recall timer messages that are not due yet.", live=True
    )
    allow_recall_when_broker_not_writeable: bool = setting(
        True, "Take recalls also when brokerPermission does not let producers send.", live=True
    )
    long_polling_enable: bool = setting(
        True, "Hold a pull that finds no messages for as long as its client asks.", live=True
    )
    short_polling_time_mills: int = setting(
        1000, "How long such a pull is held if longPollingEnable=false.", unit="ms", low=1, live=True
    )
    lite_pull_message_enable: bool = setting(True, "Answer lite pull consumers.", live=True)
    reject_pull_consumer_enable: bool = setting(
        False, "Refuse pulls of groups without heartbeats.", live=True
    )
    slave_read_enable: bool = setting(
        False, "Slaves answer pulls, and the master sends slow consumers there.", live=True
    )
    notify_consumer_ids_changed_enable: bool = setting(
        True, "Notify the members of a group when others join or leave."
    )
    channel_expired_timeout: int = setting(
        120_000,
        "Time without a heartbeat after which a client is forgotten.",
        unit="ms",
        low=1,
        high=LONG_MAX,
    )
    subscription_expired_timeout: int = setting(
        600_000,
        "Time after which a subscription known only from pulls is forgotten.",
        unit="ms",
        low=1,
        high=LONG_MAX,
    )
    forward_timeout: int = setting(
        3000,
        "How long another broker may take to answer for its part of a static topic.",
        unit="ms",
        live=True,
        low=1,
        high=LONG_MAX,
    )
    static_topic_clean_interval: int = setting(
        5 * 60 * 1000,
        "Pause between looks for parts of static topics whose messages are gone.",
        own=True,
        unit="ms",
        live=True,
        low=100,
        high=LONG_MAX,
    )
    use_server_side_reset_offset: bool = setting(
        True, "The broker resets offsets itself, with the group's next pull.", live=True
    )

    enable_property_filter: bool = setting(False, "Consumers may filter by SQL92 expressions.", live=True)
    filter_support_retry: bool = setting(False, "Apply filters to retried messages as well.", live=True)
    expect_consumer_num_use_filter: int = setting(
        32, "Expected number of groups with a filter per topic.", low=1
    )
    max_error_rate_of_bloom_filter: int = setting(
        20, "Accepted error rate of the bloom filter.", unit="%", low=1, high=100
    )
    filter_data_clean_time_span: int = setting(
        24 * 3600 * 1000, "Time without use after which a filter is forgotten.", unit="ms", high=LONG_MAX
    )

    flush_consumer_offset_interval: int = setting(
        5000, "Time between two writes of the consumer offsets.", unit="ms", low=1, live=True
    )
    consumer_offset_update_version_step: int = setting(
        500, "Commits per new data version.", low=1, high=LONG_MAX
    )
    delay_offset_update_version_step: int = setting(
        200, "Deliveries of delayed messages per new data version.", low=1, high=LONG_MAX
    )

    metrics_exporter_type: MetricsExporterType = setting(
        MetricsExporterType.DISABLE, "PROM serves metrics to Prometheus."
    )
    metrics_prom_exporter_port: int = setting(5557, "Port of the metrics; 0: any free one.", high=PORT_MAX)
    metrics_prom_exporter_host: str = setting("", "Address to serve metrics on; empty: that of bindAddress.")
    metrics_label: str = setting("", "Labels of every metric, as `name:value,name:value`.")
    metrics_otel_cardinality_limit: int = setting(
        50_000, "Maximum number of series of one metric.", unit="series", low=1
    )

    tls: TlsConfig = dataclasses.field(default_factory=TlsConfig)
    auth: AuthConfig = dataclasses.field(default_factory=AuthConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        for key, text in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            if not text:
                raise ConfigError(f"{key}: a name is needed")
        for address in self.namesrv_addresses:
            try:
                parse_address(address)
            except Exception as error:
                raise ConfigError(f"namesrvAddr={self.namesrv_addr}: {error}") from None

        parse_advertised(self.advertise)
        if self.failover:
            parse_where(self.failover)

    @property
    def advertised_host(self) -> str:
        """The host at which clients reach this broker."""
        return parse_advertised(self.advertise)[0] or self.broker_ip1

    @property
    def namesrv_addresses(self) -> list[str]:
        return [address.strip() for address in self.namesrv_addr.split(";") if address.strip()]

    @property
    def limits(self) -> Limits:
        """The limits of a client's connection."""
        return Limits(idle_s=float(self.server_channel_max_idle_time_seconds))


SETTINGS: dict[str, Setting] = settings_of(BrokerConfig)

DECISIVE = (
    "allAckInSyncStateSet",
    "brokerRole",
    "enableAutoInSyncReplicas",
    "failover",
    "flushCommitLogThoroughInterval",
    "flushDiskType",
    "flushIntervalCommitLog",
    "inSyncReplicas",
    "minInSyncReplicas",
    "storePathCommitLog",
    "storePathRootDir",
    "totalReplicas",
    "transientStorePoolEnable",
)
"""Keys that decide what an acknowledgement is worth."""

KEYS = KnownKeys(
    {**SETTINGS, **store_settings.SETTINGS, **auth_settings.SETTINGS},
    AUTH_KEYS,
    BROKER_KEYS,
    keys_since_5_4.BROKER_KEYS,
    store_settings.KEYS.unused,
    REMOTING_KEYS,
    decisive=DECISIVE,
)
"""All keys that a broker.conf may have, except `tls.*`."""
_LISTED = KnownKeys(KEYS.acted_on, BROKER_KEYS, STORE_KEYS, REMOTING_KEYS)


def all_values(config: BrokerConfig, store_config: MessageStoreConfig) -> dict[str, str]:
    """Every key of RocketMQ's BrokerConfig, MessageStoreConfig and Netty configurations, as its broker lists them.

    Keys that are not acted on have Java's default; those whose default is null are left out, as Java does.
    """
    values = {key: known.default_text for key, known in _LISTED.unused.items() if known.default is not None}
    acted_on = {**config.to_mapping(), **store_config.to_mapping(), "aclEnable": config.auth.acl_enable}
    return values | {key: text_of(value) for key, value in acted_on.items()}


class BrokerSettings(NamedTuple):
    config: BrokerConfig
    store_config: MessageStoreConfig
    remarks: list[str]
    """Sentences on the keys in the file that the operator should look at."""


def read_settings(properties: Mapping[str, str]) -> BrokerSettings:
    """Both configurations from one flat set of keys.

    Raises ConfigError for a value that cannot be used, and for a key that is dangerous to ignore.
    """
    tls, remarks = read_tls(properties, KEYS)
    auth = AuthConfig().replaced(properties)
    config = dataclasses.replace(BrokerConfig().replaced(properties), tls=tls, auth=auth)
    store_config = MessageStoreConfig().replaced(properties)
    if config.metrics_exporter_type not in (MetricsExporterType.DISABLE, MetricsExporterType.PROM):
        remarks.append(
            f"metricsExporterType={config.metrics_exporter_type.name}: only PROM serves metrics here"
        )
    if config.failover and store_config.transient_store_pool_enable:
        raise ConfigError(
            "transientStorePoolEnable=true: not with failover, whose replicas can all become master"
        )
    is_slave = store_config.broker_role is BrokerRole.SLAVE
    if config.failover:
        # each starts as a slave; replica 0 is the first master of a new group
        store_config = dataclasses.replace(store_config, broker_role=BrokerRole.SLAVE)
    if is_slave:
        if config.broker_id == MASTER_ID:
            raise ConfigError("brokerId=0: a slave (brokerRole=SLAVE) needs another one, as 1")
    elif config.broker_id != MASTER_ID:
        remarks.append(f"brokerId={config.broker_id}: a master's is {MASTER_ID}")
        config = dataclasses.replace(config, broker_id=MASTER_ID)
    return BrokerSettings(config, store_config, remarks)


def read_settings_of_store(properties: Mapping[str, str]) -> BrokerSettings:
    """As read_settings(), and file sizes that `properties` leave open are those of the store's files.

    Also raises what fit_to_files() raises.
    """
    settings = read_settings(properties)
    return settings._replace(store_config=fit_to_files(settings.store_config, properties.keys()))


def is_known(key: str) -> bool:
    """True if a broker.conf can have the key."""
    return key in KEYS or key in TLS_KEYS


def require_known(keys: Iterable[str]) -> None:
    """UnknownKeyError for the first key that a broker.conf cannot have."""
    for key in keys:
        if not is_known(key):
            raise UnknownKeyError(key, [*KEYS, *TLS_KEYS])
