"""The processors of a name server: header and body in, tables, header and body out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from weakref import WeakValueDictionary

from mqlake.base.java_properties import format_properties, parse_properties
from mqlake.errors import ConfigError, ResponseError
from mqlake.message import crc32
from mqlake.namesrv.config import DELETES_TOPICS, NamesrvConfig
from mqlake.namesrv.kv_config import NAMESPACE_ORDER_TOPIC_CONFIG, KVConfigManager
from mqlake.namesrv.route_info_manager import RouteInfoManager
from mqlake.remoting.bodies.compressed import decode_compressed
from mqlake.remoting.bodies.route import GetBrokerMemberGroupResponseBody, TopicRouteData
from mqlake.remoting.bodies.topic import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
)
from mqlake.remoting.codes import RequestCode, ResponseCode, Version
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers import namesrv as headers
from mqlake.remoting.processors import answers

logger = logging.getLogger(__name__)

ZONE_NAME = "__ZONE_NAME"
DECODED_ON_LOOP_MAX = 64 * 1024
"""Bytes of a registration; a longer one (1.3 MB for 10,000 topics takes 55 ms) is decoded in a thread."""
HELD_MAX = 64 << 20
"""Bytes of registrations that wait or are being read; more are refused before they are copied."""


class NamesrvProcessors:
    """The processors of one name server; `config` may be changed by one of them."""

    def __init__(
        self,
        config: NamesrvConfig,
        routes: RouteInfoManager,
        kv_config: KVConfigManager,
        store_config: Callable[[NamesrvConfig], None],
    ) -> None:
        """`store_config` persists a changed configuration, or raises OSError."""
        self.config = config
        self._routes = routes
        self._kv_config = kv_config
        self._store_config = store_config
        self._turns: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By cluster and address of a broker whose registration is being read."""
        self._taking = asyncio.Lock()
        """Held while topics are taken into the routes."""
        self._held = 0
        """Bytes of registrations that wait or are being read."""

    # --- brokers

    @answers(RequestCode.REGISTER_BROKER)
    async def _register_broker(
        self, connection: Connection, request: RemotingCommand, header: headers.RegisterBrokerRequestHeader
    ) -> RemotingCommand:
        size = len(request.body or b"")
        if self._held + size > HELD_MAX:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                f"{self._held} bytes of registrations are being read, {HELD_MAX} are allowed; register again later",
            )
        self._held += size
        try:
            return await self._register_in_turn(connection, request, header)
        finally:
            self._held -= size

    async def _register_in_turn(
        self, connection: Connection, request: RemotingCommand, header: headers.RegisterBrokerRequestHeader
    ) -> RemotingCommand:
        raw = request.body_bytes()
        turn = self._turns.setdefault((header.cluster_name, header.broker_addr), asyncio.Lock())
        async with turn:  # a broker's in the order in which they came
            if len(raw) <= DECODED_ON_LOOP_MAX and not header.compressed:
                body = _decode_registration(raw, header, request.version)
            else:
                body = await asyncio.to_thread(_decode_registration, raw, header, request.version)
            async with self._taking:
                _check_open(connection)
                answer = self._registered(connection, request, header, body)
                while self._routes.take_more_topics():
                    await asyncio.sleep(0)
                _check_open(connection)
                return answer

    def _registered(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: headers.RegisterBrokerRequestHeader,
        body: RegisterBrokerBody,
    ) -> RemotingCommand:
        result = self._routes.register_broker(
            header.cluster_name,
            header.broker_addr,
            header.broker_name,
            header.broker_id,
            header.ha_server_addr,
            body.topic_config_serialize_wrapper,
            filter_servers=body.filter_server_list,
            zone_name=request.ext_fields.get(ZONE_NAME),
            expires_ms=header.heartbeat_timeout_millis,
            enable_acting_master=header.enable_acting_master,
            channel=connection,
            partial=header.partial or False,
        )
        if result is None:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "register broker failed")
        order_topics = None
        if self.config.return_order_topic_config_to_broker:
            order_topics = self._kv_config.get_namespace(NAMESPACE_ORDER_TOPIC_CONFIG)
        return RemotingCommand.create_response(
            header=headers.RegisterBrokerResponseHeader(
                ha_server_addr=result.ha_server_addr, master_addr=result.master_addr
            ),
            body=None if order_topics is None else KVTable(table=order_topics).to_json(),
        )

    @answers(RequestCode.UNREGISTER_BROKER)
    def _unregister_broker(self, header: headers.UnRegisterBrokerRequestHeader) -> RemotingCommand:
        self._routes.unregister_broker(
            header.cluster_name, header.broker_addr, header.broker_name, header.broker_id
        )
        return RemotingCommand.create_response()

    @answers(RequestCode.QUERY_DATA_VERSION)
    def _query_data_version(
        self, request: RemotingCommand, header: headers.QueryDataVersionRequestHeader
    ) -> RemotingCommand:
        version = DataVersion.from_json(request.body_bytes() or b"{}")
        cluster_name, broker_addr = header.cluster_name, header.broker_addr
        changed = self._routes.is_broker_topic_config_changed(cluster_name, broker_addr, version)
        self._routes.update_broker_info_update_timestamp(cluster_name, broker_addr)
        known = self._routes.query_broker_topic_config(cluster_name, broker_addr)
        return RemotingCommand.create_response(
            header=headers.QueryDataVersionResponseHeader(changed=changed),
            body=None if known is None else known.to_json(),
        )

    @answers(RequestCode.BROKER_HEARTBEAT)
    def _broker_heartbeat(self, header: headers.BrokerHeartbeatRequestHeader) -> RemotingCommand:
        self._routes.update_broker_info_update_timestamp(header.cluster_name, header.broker_addr)
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_BROKER_MEMBER_GROUP)
    def _get_broker_member_group(self, header: headers.GetBrokerMemberGroupRequestHeader) -> RemotingCommand:
        group = self._routes.get_broker_member_group(header.cluster_name, header.broker_name)
        body = GetBrokerMemberGroupResponseBody(broker_member_group=group)
        return RemotingCommand.create_response(body=body.to_json())

    # --- clients

    @answers(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    def _get_route_info(
        self, request: RemotingCommand, header: headers.GetRouteInfoRequestHeader
    ) -> RemotingCommand:
        route = self._routes.pickup_topic_route_data(header.topic)
        if route is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}; "
                "create it, or check that its broker runs and names this server in namesrvAddr",
            )
        if self.config.order_message_enable:
            route.order_topic_conf = self._kv_config.get(NAMESPACE_ORDER_TOPIC_CONFIG, header.topic)
        strict = request.version >= Version.V4_9_4 or bool(header.accept_standard_json_only)
        return RemotingCommand.create_response(body=route.to_json(strict=strict))

    @answers(RequestCode.GET_BROKER_CLUSTER_INFO)
    def _get_broker_cluster_info(self) -> RemotingCommand:
        return RemotingCommand.create_response(body=self._routes.get_all_cluster_info().to_json())

    # --- topics

    @answers(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    def _get_all_topic_list(self) -> RemotingCommand:
        if not self.config.enable_all_topic_list:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "disabled here (enableAllTopicList=false)")
        return RemotingCommand.create_response(body=self._routes.get_all_topic_list().to_json())

    @answers(
        (
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
            RequestCode.GET_UNIT_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        )
    )
    def _get_topic_list(self, request: RemotingCommand) -> RemotingCommand:
        self._require_topic_lists()
        topics = {
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._routes.get_system_topic_list,
            RequestCode.GET_UNIT_TOPIC_LIST: self._routes.get_unit_topics,
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._routes.get_has_unit_sub_topic_list,
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._routes.get_has_unit_sub_ununit_topic_list,
        }[RequestCode(request.code)]
        return RemotingCommand.create_response(body=topics().to_json())

    @answers(RequestCode.GET_TOPICS_BY_CLUSTER)
    def _get_topics_by_cluster(self, request: RemotingCommand) -> RemotingCommand:
        self._require_topic_lists()
        header = request.decode_header(headers.GetTopicsByClusterRequestHeader)
        topics = self._routes.get_topics_by_cluster(header.cluster)
        return RemotingCommand.create_response(body=topics.to_json())

    def _require_topic_lists(self) -> None:
        if not self.config.enable_topic_list:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "disabled here (enableTopicList=false)")

    @answers(RequestCode.DELETE_TOPIC_IN_NAMESRV)
    def _delete_topic(self, header: headers.DeleteTopicFromNamesrvRequestHeader) -> RemotingCommand:
        self._routes.delete_topic(header.topic, header.cluster_name)
        return RemotingCommand.create_response()

    @answers(RequestCode.REGISTER_TOPIC_IN_NAMESRV)
    def _register_topic(
        self, request: RemotingCommand, header: headers.RegisterTopicRequestHeader
    ) -> RemotingCommand:
        route = TopicRouteData.from_json(request.body_bytes() or b"{}")
        self._routes.register_topic(header.topic, route.queue_datas)
        return RemotingCommand.create_response()

    # --- operators

    @answers(RequestCode.WIPE_WRITE_PERM_OF_BROKER)
    def _wipe_write_perm(self, header: headers.WipeWritePermOfBrokerRequestHeader) -> RemotingCommand:
        count = self._routes.wipe_write_perm_of_broker(header.broker_name)
        logger.info("%s: clients send no more messages to its %d topics", header.broker_name, count)
        return RemotingCommand.create_response(
            header=headers.WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
        )

    @answers(RequestCode.ADD_WRITE_PERM_OF_BROKER)
    def _add_write_perm(self, header: headers.AddWritePermOfBrokerRequestHeader) -> RemotingCommand:
        count = self._routes.add_write_perm_of_broker(header.broker_name)
        return RemotingCommand.create_response(
            header=headers.AddWritePermOfBrokerResponseHeader(add_topic_count=count)
        )

    @answers(RequestCode.PUT_KV_CONFIG)
    def _put_kv_config(self, header: headers.PutKVConfigRequestHeader) -> RemotingCommand:
        self._kv_config.put(header.namespace, header.key, header.value)
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_KV_CONFIG)
    def _get_kv_config(self, header: headers.GetKVConfigRequestHeader) -> RemotingCommand:
        value = self._kv_config.get(header.namespace, header.key)
        if value is None:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND,
                f"No config item, Namespace: {header.namespace} Key: {header.key}",
            )
        return RemotingCommand.create_response(header=headers.GetKVConfigResponseHeader(value=value))

    @answers(RequestCode.DELETE_KV_CONFIG)
    def _delete_kv_config(self, header: headers.DeleteKVConfigRequestHeader) -> RemotingCommand:
        self._kv_config.delete(header.namespace, header.key)
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_KVLIST_BY_NAMESPACE)
    def _get_kv_list(self, header: headers.GetKVListByNamespaceRequestHeader) -> RemotingCommand:
        table = self._kv_config.get_namespace(header.namespace)
        if table is None:
            raise ResponseError(
                ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {header.namespace}"
            )
        return RemotingCommand.create_response(body=KVTable(table=table).to_json())

    @answers(RequestCode.UPDATE_NAMESRV_CONFIG)
    def _update_config(self, request: RemotingCommand) -> RemotingCommand:
        try:
            properties = parse_properties(request.body_bytes().decode())
            changed = self.config.updated(properties)
        except (ConfigError, UnicodeDecodeError) as error:
            raise ResponseError(ResponseCode.NO_PERMISSION, str(error)) from error
        if changed != self.config:
            self._store_config(changed)
            if (
                changed.delete_topic_with_broker_registration
                > self.config.delete_topic_with_broker_registration
            ):
                logger.warning("%s", DELETES_TOPICS)
            self.config = changed
            self._routes.support_acting_master = changed.support_acting_master
            self._routes.delete_topic_with_broker_registration = changed.delete_topic_with_broker_registration
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_NAMESRV_CONFIG)
    def _get_config(self) -> RemotingCommand:
        return RemotingCommand.create_response(body=format_properties(self.config.to_properties()).encode())


def _check_open(connection: Connection) -> None:
    """ResponseError if the broker has gone meanwhile: its connection's end, which forgets it, was handled then."""
    if connection.closed:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "the broker's connection is closed")


def _decode_registration(
    raw: bytes, header: headers.RegisterBrokerRequestHeader, version: int
) -> RegisterBrokerBody:
    if header.body_crc32 and crc32(raw) != header.body_crc32:
        raise ResponseError(ResponseCode.SYSTEM_ERROR, "crc32 not match")
    if not raw:
        return RegisterBrokerBody()
    return decode_compressed(raw, version) if header.compressed else RegisterBrokerBody.from_json(raw)
