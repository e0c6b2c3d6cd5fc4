"""PullMessageProcessor: 11 PULL_MESSAGE, 361 LITE_PULL_MESSAGE.

    request ─▶ may the group read the topic? ─▶ its filter ─▶ store ─▶ answer: records as slices of the log
                                                                └ nothing there ─▶ PullRequestHoldService

Records are sent as they are in the log, without being parsed; small answers are joined for one
write. An answer with records that are being deleted is safe: their memory stays until it is sent.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable

from mqlake.base.clock import now_ms
from mqlake.broker.broker import Broker
from mqlake.broker.filter import TAG, is_tag_type
from mqlake.broker.filter.message_filter import ExpressionForRetryMessageFilter, ExpressionMessageFilter
from mqlake.broker.mqtrace.contexts import pull_context
from mqlake.broker.services.after_dispatch import when_dispatched
from mqlake.broker.services.archived import from_archive
from mqlake.broker.services.pull_request_hold import PullRequest, PullRequestHoldService
from mqlake.broker.state.topic_config import NO_BATCH
from mqlake.errors import ResponseError
from mqlake.message import tags_code
from mqlake.message.groups import SYSTEM_GROUPS
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig
from mqlake.remoting.bodies.client import ConsumeType, MessageModel, SubscriptionData
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.bodies.topic import PERM_READ
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RESPONSE_FLAG, RemotingCommand
from mqlake.remoting.connection import Answer, Connection
from mqlake.remoting.headers.consume import PullMessageRequestHeader
from mqlake.remoting.processors import answers
from mqlake.store.archive.reader import NotCachedError
from mqlake.store.filter import SUBSCRIBE_ALL, MessageFilter, TagFilter
from mqlake.store.results import GetMessageResult, GetMessageStatus

logger = logging.getLogger(__name__)

COMMIT_OFFSET_FLAG = 0x1
SUSPEND_FLAG = 0x2
SUBSCRIPTION_FLAG = 0x4

# forbiddenType: what forbids it
BROKER_FORBIDDEN = 1
GROUP_FORBIDDEN = 2
TOPIC_FORBIDDEN = 3
BROADCASTING_DISABLE_FORBIDDEN = 4
SUBSCRIPTION_FORBIDDEN = 5

PROXY_FOR_BROADCAST = 1
PROXY_FOR_STREAM = 2

OFFSET_RESET = "OFFSET_RESET"

_CODES = {
    GetMessageStatus.FOUND: ResponseCode.SUCCESS,
    GetMessageStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetMessageStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetMessageStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetMessageStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (GetMessageStatus.NO_MATCHED_LOGIC_QUEUE, GetMessageStatus.NO_MESSAGE_IN_QUEUE)


@functools.lru_cache(maxsize=4096)
def tag_filter(expression: str) -> TagFilter | None:
    """The filter of `TagA || TagB`, None for every message."""
    made = TagFilter(expression)
    return made if made.codes else None


class _ForbiddenError(ResponseError):
    """NO_PERMISSION; `forbidden_type` tells the client which permission is missing."""

    def __init__(self, forbidden_type: int, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.forbidden_type = forbidden_type


class PullMessageProcessor:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.pull_request_hold_service = PullRequestHoldService(broker)
        self._build_filter_data = functools.lru_cache(maxsize=1024)(broker.consumer_filter_manager.build)

    @answers((RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE))
    def pull_message(
        self, connection: Connection, request: RemotingCommand, header: PullMessageRequestHeader
    ) -> Answer | Awaitable[Answer]:
        if self._broker.store.dispatch_behind_bytes and self._is_beyond(header):
            pull = functools.partial(self._pull_or_hold, connection, request.code, header)
            return asyncio.ensure_future(when_dispatched(self._broker.store, pull))
        return self._pull_or_hold(connection, request.code, header)

    def _is_beyond(self, header: PullMessageRequestHeader) -> bool:
        """True if it asks for messages that may have been acknowledged but are not dispatched yet. One that is held at
        the end of its queue waits for them anyway."""
        end = self._broker.store.max_offset_in_queue(header.topic, header.queue_id)
        return header.queue_offset > end or (
            header.queue_offset == end and not header.sys_flag & SUSPEND_FLAG
        )

    def _pull_or_hold(
        self, connection: Connection, code: int, header: PullMessageRequestHeader
    ) -> Answer | Awaitable[Answer]:
        try:
            return self._pull_or_hold_here(connection, code, header)
        except NotCachedError as missing:
            again = functools.partial(self._pull_or_hold_here, connection, code, header)
            return from_archive(self._broker.store, again, missing)

    def _pull_or_hold_here(
        self, connection: Connection, code: int, header: PullMessageRequestHeader
    ) -> Answer | Awaitable[Answer]:
        """NotCachedError if messages have to be fetched from the archive."""
        try:
            response, message_filter = self._pull(connection, code, header, first=True)
        except NotCachedError:
            raise
        except BlockingIOError:
            return self._pull_from_disk(connection, code, header)
        if response.code != ResponseCode.PULL_NOT_FOUND or not header.sys_flag & SUSPEND_FLAG:
            return response
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        execute = functools.partial(self.execute_when_wakeup, connection, code, header)
        self.hold(header, header.queue_offset, message_filter, answer, execute)
        return answer

    def hold(
        self,
        header: PullMessageRequestHeader,
        pull_from: int,
        message_filter: MessageFilter | None,
        answer: asyncio.Future[Answer],
        execute: Callable[[], Answer],
    ) -> None:
        """Has a pull from the end of its queue wait for messages, as PullRequest says; `answer` is done then, or when
        the time is over for which its header says that it may be held."""
        config = self._broker.config
        held_ms = (
            header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
        )
        deadline = answer.get_loop().time() + held_ms / 1000
        self.pull_request_hold_service.suspend_pull_request(
            header.topic,
            header.queue_id,
            PullRequest(header.consumer_group, pull_from, message_filter, answer, deadline, execute),
        )

    async def _pull_from_disk(
        self, connection: Connection, code: int, header: PullMessageRequestHeader
    ) -> RemotingCommand:
        """A pull of messages that are only on disk: only a thread waits for them."""
        store = self._broker.store
        await asyncio.to_thread(
            store.read_ahead, header.topic, header.queue_id, header.queue_offset, header.max_msg_nums
        )
        return self._pull(connection, code, header, first=True, may_wait=True)[0]

    def execute_when_wakeup(
        self, connection: Connection, code: int, header: PullMessageRequestHeader
    ) -> RemotingCommand:
        """The answer to a pull that was held, with the messages there are now, if any."""
        return self._pull(connection, code, header, first=False, may_wait=True)[0]

    def _pull(
        self,
        connection: Connection,
        code: int,
        header: PullMessageRequestHeader,
        *,
        first: bool,
        may_wait: bool = False,
    ) -> tuple[RemotingCommand, MessageFilter | None]:
        broker = self._broker
        began = time.monotonic_ns()
        try:
            group_config, topic_sys_flag = self.check(connection, code, header)
            message_filter = self.filter_of(header, group_config)
        except _ForbiddenError as error:
            response = RemotingCommand.create_response(error.code, error.remark)
            response.ext_fields["forbiddenType"] = str(error.forbidden_type)
            return response, None
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        store, offsets = broker.store, broker.consumer_offset_manager
        reset = offsets.query_then_erase_reset_offset(topic, group, queue_id)
        if reset is not None and broker.config.use_server_side_reset_offset:
            result = GetMessageResult(
                GetMessageStatus.OFFSET_OVERFLOW_BADLY,
                reset,
                max(store.min_offset_in_queue(topic, queue_id), 0),
                store.max_offset_in_queue(topic, queue_id),
            )
            response = self.response(header, result, group_config, topic_sys_flag)
            response.remark = OFFSET_RESET
        else:
            result = store.get_message(
                group,
                topic,
                queue_id,
                header.queue_offset,
                header.max_msg_nums,
                message_filter,
                may_wait=may_wait,
            )
            response = self.response(header, result, group_config, topic_sys_flag)
        offsets.commit_pull_offset(
            connection.remote_address, group, topic, queue_id, result.next_begin_offset
        )
        if first and header.sys_flag & COMMIT_OFFSET_FLAG:
            offsets.commit_offset(connection.remote_address, group, topic, queue_id, header.commit_offset)
        elapsed_ms = (time.monotonic_ns() - began) // 1_000_000
        is_held = first and response.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & SUSPEND_FLAG
        if broker.hooks.consume and not is_held:
            context = pull_context(broker, connection, header, result, response)
            broker.hooks.execute_consume_message_hook_before(context)
        if response.code == ResponseCode.SUCCESS:
            response.body = result.buffers
            store.store_stats_service.get_found(result.message_count, elapsed_ms)
            self.count(header, result.message_count, result.buffer_total_size, elapsed_ms, result.last_place)
            return response, message_filter
        store.store_stats_service.get_missed(elapsed_ms)
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            logger.info(
                "%s: offset %d of %s-%d becomes %d: %s",
                group,
                header.queue_offset,
                topic,
                queue_id,
                result.next_begin_offset,
                response.remark,
            )
        return response, message_filter

    # --- may it

    def check(
        self, connection: Connection, code: int, header: PullMessageRequestHeader
    ) -> tuple[SubscriptionGroupConfig, int]:
        """The group, and the topic's flags. ResponseError if the group may not pull from the topic."""
        broker = self._broker
        config, topic = broker.config, header.topic
        if broker.is_slave and not config.slave_read_enable:
            raise ResponseError(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy, start flow control for a while: this broker is a slave, "
                "slaveReadEnable is false; pull from its master",
            )
        if not config.broker_permission & PERM_READ:
            raise _ForbiddenError(
                BROKER_FORBIDDEN, f"the broker[{config.broker_ip1}] pulling message is forbidden"
            )
        if code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise _ForbiddenError(
                BROKER_FORBIDDEN, f"the broker[{config.broker_ip1}] for lite pull consumer is forbidden"
            )
        group_config = broker.subscription_group_manager.existing_group(header.consumer_group)
        if not group_config.consume_enable:
            raise _ForbiddenError(
                GROUP_FORBIDDEN, f"subscription group no permission, {header.consumer_group}"
            )
        topic_config = broker.topic_config_manager.select_topic_config(topic)
        if topic_config is None:
            raise ResponseError(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        if not topic_config.perm & PERM_READ:
            raise _ForbiddenError(TOPIC_FORBIDDEN, f"the topic[{topic}] pulling message is forbidden")
        if not 0 <= header.queue_id < topic_config.read_queue_nums:
            raise ResponseError(
                ResponseCode.INVALID_PARAMETER,
                f"queueId[{header.queue_id}] is illegal, topic:[{topic}] "
                f"topicConfig.readQueueNums:[{topic_config.read_queue_nums}] "
                f"consumer:[{connection.remote_address}]",
            )
        return group_config, topic_config.topic_sys_flag

    # --- what it wants

    def filter_of(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> MessageFilter | None:
        """The filter of the subscription, from the pull or from a heartbeat. ResponseError."""
        broker = self._broker
        manager = broker.consumer_filter_manager
        group, topic = header.consumer_group, header.topic
        if broker.config.reject_pull_consumer_enable:
            self._refuse_unknown(group)
        if header.sys_flag & SUBSCRIPTION_FLAG:
            subscription = _brought_along(header)
            if broker.consumer_manager.get_consumer_group_info(group) is None:
                self._compensate(header, subscription)
            if is_tag_type(subscription.expression_type):
                return tag_filter(subscription.sub_string or "")
            filter_data = self._build_filter_data(
                topic, group, header.subscription, header.expression_type, header.sub_version
            )
        else:
            subscription = self._subscription(header, group_config)
            if is_tag_type(subscription.expression_type):
                return tag_filter(subscription.sub_string or "")
            known = manager.get(topic, group)
            if known is None:
                raise ResponseError(
                    ResponseCode.FILTER_DATA_NOT_EXIST,
                    "The broker's consumer filter data is not exist!Your expression may be wrong!",
                )
            if known.client_version < header.sub_version:
                raise ResponseError(
                    ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest"
                )
            filter_data = known
        if not broker.config.enable_property_filter:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                "The broker does not support consumer to filter message by "
                f"{subscription.expression_type}: set enablePropertyFilter=true",
            )
        if broker.config.filter_support_retry:
            return ExpressionForRetryMessageFilter(subscription, filter_data, manager)
        return ExpressionMessageFilter(subscription, filter_data)

    def _refuse_unknown(self, group: str) -> None:
        """rejectPullConsumerEnable: only groups whose heartbeats say that they push, and RocketMQ's own, pull."""
        if group in SYSTEM_GROUPS:
            return
        group_info = self._broker.consumer_manager.get_consumer_group_info(group)
        if group_info is None or group_info.consume_type is ConsumeType.CONSUME_ACTIVELY:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                "the consumer's group info not exist, or the pull consumer is rejected by server "
                "(rejectPullConsumerEnable=true)",
            )

    def _compensate(self, header: PullMessageRequestHeader, subscription: SubscriptionData) -> None:
        """Remembers the subscription in a pull of a group without heartbeats, for operators' requests."""
        manager, group = self._broker.consumer_manager, header.consumer_group
        source = header.request_source
        stream, broadcast = source == PROXY_FOR_STREAM, source == PROXY_FOR_BROADCAST
        manager.compensate_basic_consumer_info(
            group,
            ConsumeType.CONSUME_ACTIVELY if stream else ConsumeType.CONSUME_PASSIVELY,
            MessageModel.BROADCASTING if broadcast else MessageModel.CLUSTERING,
        )
        manager.compensate_subscribe_data(group, header.topic, subscription)

    def _subscription(
        self, header: PullMessageRequestHeader, group_config: SubscriptionGroupConfig
    ) -> SubscriptionData:
        """The group's subscription, from heartbeats."""
        broker = self._broker
        group, topic = header.consumer_group, header.topic
        group_info = broker.consumer_manager.get_consumer_group_info(group)
        if group_info is None:
            # a restart of the broker loses heartbeats: the next one comes soon
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist: {group}"
            )
        if group_info.is_broadcasting and not group_config.consume_broadcast_enable:
            raise _ForbiddenError(
                BROADCASTING_DISABLE_FORBIDDEN,
                f"the consumer group[{group}] can not consume by broadcast way",
            )
        if broker.subscription_group_manager.get_forbidden(group, topic):
            raise _ForbiddenError(
                SUBSCRIPTION_FORBIDDEN, f"the consumer group[{group}] is forbidden for topic[{topic}]"
            )
        subscription = group_info.find_subscription_data(topic)
        if subscription is None:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's subscription not exist: {group} does not subscribe to {topic}; "
                "all members of a group must subscribe to the same topics",
            )
        if subscription.sub_version < header.sub_version:
            raise ResponseError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest"
            )
        return subscription

    # --- what it gets

    def response(
        self,
        header: PullMessageRequestHeader,
        result: GetMessageResult,
        group_config: SubscriptionGroupConfig,
        topic_sys_flag: int,
    ) -> RemotingCommand:
        config = self._broker.config
        status = result.status
        code = _CODES.get(status)
        if code is None:
            assert status in _EMPTY
            nothing_yet = header.queue_offset == 0
            code = ResponseCode.PULL_NOT_FOUND if nothing_yet else ResponseCode.PULL_OFFSET_MOVED
        suggested = MASTER_ID
        if config.slave_read_enable:
            slow = result.suggest_pulling_from_slave
            suggested = group_config.which_broker_when_consume_slowly if slow else group_config.broker_id
        if self._broker.is_slave:
            code, suggested = self._of_a_slave(code, result, suggested)
        min_offset = result.min_offset
        if status in _EMPTY and self._broker.topic_config_manager.is_batch_topic(header.topic):
            min_offset, status = NO_BATCH, GetMessageStatus.NO_MESSAGE_IN_QUEUE
        return RemotingCommand(
            code,
            flag=RESPONSE_FLAG,
            remark=status.name,
            ext_fields={
                "suggestWhichBrokerId": str(suggested),
                "nextBeginOffset": str(result.next_begin_offset),
                "minOffset": str(min_offset),
                "maxOffset": str(result.max_offset),
                "topicSysFlag": str(topic_sys_flag),
                "groupSysFlag": str(group_config.group_sys_flag),
            },
        )

    def _of_a_slave(
        self,
        code: ResponseCode,
        result: GetMessageResult,
        suggested: int,
    ) -> tuple[ResponseCode, int]:
        """The code and the suggested broker: who has all that a slave has goes back to the master. Without a master
        the slave holds the pull as a master would; RocketMQ's answers at once, and its consumers pull in a loop."""
        if result.suggest_pulling_from_slave:
            return code, suggested
        if code != ResponseCode.SUCCESS:
            code = (
                ResponseCode.PULL_NOT_FOUND
                if self._broker.is_master_away()
                else ResponseCode.PULL_RETRY_IMMEDIATELY
            )
        return code, MASTER_ID

    def count(
        self,
        header: PullMessageRequestHeader,
        messages: int,
        size: int,
        latency_ms: int,
        last_place: tuple[int, int],
        pulls: int = 1,
    ) -> None:
        """Counts what `pulls` pulls of a group got from a queue. `last_place`: as in GetMessageResult."""
        broker = self._broker
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        stats, store = broker.broker_stats_manager, broker.store
        stats.get(group, topic, queue_id, messages, size, latency_ms, pulls)
        physical_offset, last_size = last_place
        stats.record_disk_fall_behind(
            group,
            topic,
            queue_id,
            max(store.max_phy_offset - physical_offset - last_size, 0),
            max(broker.clock_ms() - store.store_timestamp_at(physical_offset, last_size), 0),
        )


def _brought_along(header: PullMessageRequestHeader) -> SubscriptionData:
    """FilterAPI.build: the subscription that a pull carries."""
    expression = header.subscription or SUBSCRIBE_ALL
    tags: set[str] = set()
    if is_tag_type(header.expression_type) and expression != SUBSCRIBE_ALL:
        tags = {tag.strip() for tag in expression.split("||") if tag.strip()}
    return SubscriptionData(
        topic=header.topic,
        sub_string=expression,
        tags_set=tags,
        code_set={tags_code(tag) for tag in tags},
        sub_version=header.sub_version or now_ms(),
        expression_type=header.expression_type or TAG,
    )
