"""Operators' requests on consumer groups: create, change, delete, list, permissions, request mode."""

from __future__ import annotations

import logging

from mqlake.base import json_config
from mqlake.broker.broker import Broker
from mqlake.broker.metrics.execution_times import ExecutionTimes
from mqlake.broker.state.subscription_group import FORBIDDEN_READ_BIT
from mqlake.errors import ConfigError, ResponseError
from mqlake.message import RETRY_GROUP_TOPIC_PREFIX
from mqlake.remoting.bodies.admin import GroupForbidden, SubscriptionGroupConfig, SubscriptionGroupList
from mqlake.remoting.bodies.client import SetMessageRequestModeRequestBody
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Connection
from mqlake.remoting.headers.admin import (
    DeleteSubscriptionGroupRequestHeader,
    GetSubscriptionGroupConfigRequestHeader,
    UpdateGroupForbiddenRequestHeader,
)
from mqlake.remoting.processors import answers

logger = logging.getLogger(__name__)


class GroupAdmin:
    def __init__(self, broker: Broker, create_times: ExecutionTimes) -> None:
        self._broker = broker
        self._create_times = create_times

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    def update_and_create_subscription_group(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        return self._update([SubscriptionGroupConfig.from_json(request.body_bytes())], connection)

    @answers(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST)
    def update_and_create_subscription_group_list(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand:
        """225 UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: all of them, or none."""
        body = SubscriptionGroupList.from_json(request.body_bytes())
        return self._update(body.group_config_list, connection)

    def _update(self, configs: list[SubscriptionGroupConfig], connection: Connection) -> RemotingCommand:
        names = [config.group_name for config in configs]
        logger.info("%s: groups are made or changed: %s", connection.remote_address, names)
        try:
            with self._create_times.measured():
                self._broker.subscription_group_manager.update_subscription_group_config_list(configs)
        except ConfigError as error:
            raise ResponseError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
    def get_all_subscription_group(self) -> RemotingCommand:
        content = self._broker.subscription_group_manager.encode()
        return RemotingCommand.create_response(body=json_config.dumps(content, pretty=False).encode())

    @answers(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG)
    def get_subscription_group(self, header: GetSubscriptionGroupConfigRequestHeader) -> RemotingCommand:
        """352 GET_SUBSCRIPTIONGROUP_CONFIG. As everywhere, this creates an unknown group if that is allowed."""
        config = self._broker.subscription_group_manager.find_subscription_group_config(header.group)
        if config is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"No group in this broker. group: {header.group[:300]}",
            )
        return RemotingCommand.create_response(body=config.to_json())

    @answers(RequestCode.DELETE_SUBSCRIPTIONGROUP)
    def delete_subscription_group(
        self, connection: Connection, header: DeleteSubscriptionGroupRequestHeader
    ) -> RemotingCommand:
        """207 DELETE_SUBSCRIPTIONGROUP. Not an error if it does not exist, as the tool asks every broker."""
        broker = self._broker
        logger.info("%s: group %s is deleted", connection.remote_address, header.group_name)
        broker.subscription_group_manager.delete_subscription_group_config(header.group_name)
        if header.clean_offset:
            broker.consumer_offset_manager.remove_offset(header.group_name)
        broker.broker_stats_manager.on_group_deleted(header.group_name)
        return RemotingCommand.create_response()

    @answers(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN)
    def update_and_get_group_forbidden(
        self, connection: Connection, header: UpdateGroupForbiddenRequestHeader
    ) -> RemotingCommand:
        """353 UPDATE_AND_GET_GROUP_FORBIDDEN: without `readable` it only reports."""
        manager = self._broker.subscription_group_manager
        group, topic = header.group, header.topic
        if header.readable is not None:
            logger.info("%s: %s may read %s: %s", connection.remote_address, group, topic, header.readable)
            manager.update_forbidden(group, topic, FORBIDDEN_READ_BIT, not header.readable)
        readable = not manager.get_forbidden(group, topic, FORBIDDEN_READ_BIT)
        body = GroupForbidden(group=group, topic=topic, readable=readable)
        return RemotingCommand.create_response(remark="", body=body.to_json())

    # --- pull or pop

    @answers(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_message_request_mode(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """401 SET_MESSAGE_REQUEST_MODE: members of a group learn the mode from QUERY_ASSIGNMENT."""
        mode = SetMessageRequestModeRequestBody.from_json(request.body_bytes())
        broker, topic, group = self._broker, mode.topic, mode.consumer_group
        if topic.startswith(RETRY_GROUP_TOPIC_PREFIX):
            raise ResponseError(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        broker.topic_config_manager.existing_topic(topic)
        if broker.subscription_group_manager.find_subscription_group_config(group) is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist"
            )
        logger.info("%s: %s consumes %s in mode %s", connection.remote_address, group, topic, mode.mode.name)
        broker.message_request_mode_manager.set_message_request_mode(mode)
        return RemotingCommand.create_response()

    @answers(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
    def get_all_message_request_mode(self) -> RemotingCommand:
        """402 GET_ALL_MESSAGE_REQUEST_MODE: the modes that were set."""
        modes = self._broker.message_request_mode_manager.modes
        return RemotingCommand.create_response(body=modes.to_json())
