"""Static topics: what a client asks of a logical queue becomes what brokers are asked of physical queues.

    client ── queue 3, offset 10,007 ──▶ which part? ──┬─▶ here: the processor of the request ─────▶┐
                                                       └─▶ another broker, which is told lo=false ─▶┤
    client ◀── offsets of the logical queue ◀───────────────────────────────────────────────────────┘

It stands before the processors of sends, pulls, offsets of groups and ends of queues, which know nothing of it. Other
topics, and requests that say lo=false, pass. Only the broker that leads a queue answers for it: others say
NOT_LEADER_FOR_QUEUE, and the client asks a name server who does.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import random
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from mqlake.broker.broker import Broker
from mqlake.broker.requests.pull_message import COMMIT_OFFSET_FLAG, SUSPEND_FLAG
from mqlake.broker.services.other_brokers import OtherBrokers
from mqlake.errors import MqlakeError, ResponseError
from mqlake.message import PROPERTY_TRANSACTION_PREPARED, string_to_properties
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.bodies.topic import LogicQueueMappingItem, TopicQueueMappingDetail
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.connection import Answer, Connection, Processor, ProcessorTable
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.headers.consume import (
    GetEarliestMsgStoretimeRequestHeader,
    GetEarliestMsgStoretimeResponseHeader,
    GetMaxOffsetRequestHeader,
    GetMaxOffsetResponseHeader,
    GetMinOffsetRequestHeader,
    GetMinOffsetResponseHeader,
    PullMessageRequestHeader,
    QueryConsumerOffsetRequestHeader,
    QueryConsumerOffsetResponseHeader,
    SearchOffsetRequestHeader,
    SearchOffsetResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from mqlake.remoting.headers.produce import SendMessageRequestHeader, SendMessageRequestHeaderV2
from mqlake.remoting.static_topic import Items, find_item, leads, max_offset_of_mapping, next_item

PAUSE_MAX_S = 1.0
"""How long a pull is held that has read an older part to its end while it is not decided where the next begins."""

Later = Answer | Awaitable[Answer]


class _Question:
    """A request for a logical queue that this broker leads."""

    def __init__(
        self,
        connection: Connection,
        request: RemotingCommand,
        inner: Processor,
        detail: TopicQueueMappingDetail,
        queue_id: int,
    ) -> None:
        """ResponseError NOT_LEADER_FOR_QUEUE."""
        self.connection, self.request, self.inner, self.detail = connection, request, inner, detail
        self.queue_id = queue_id
        items = detail.hosted_queues.get(queue_id, ())
        if not leads(items, detail):
            raise ResponseError(
                ResponseCode.NOT_LEADER_FOR_QUEUE,
                f"{detail.topic}-{queue_id} does not exist on broker {detail.bname}, or another leads it now: "
                "ask a name server for the topic's route",
            )
        self.items: Items = items

    @property
    def leader(self) -> LogicQueueMappingItem:
        return self.items[-1]

    def is_here(self, item: LogicQueueMappingItem) -> bool:
        return item.bname == self.detail.bname

    def item_at(self, offset: int) -> LogicQueueMappingItem:
        """ResponseError if no part is decided, which no tool makes."""
        item = find_item(self.items, offset)
        if item is None:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR,
                f"{self.detail.topic}-{self.queue_id} has no part with a logicOffset",
            )
        return item

    def decided(self) -> list[LogicQueueMappingItem]:
        return [item for item in self.items if item.is_decided]

    def here(self, header: CommandHeader) -> Later:
        """Asks this broker's own processor with the physical queue's header."""
        self.request.ext_fields = {**self.request.ext_fields, **header.encode()}
        return self.inner(self.connection, self.request)


class StaticTopicTable(ProcessorTable):
    """A table of processors that puts what is here before those that are registered."""

    def __init__(self, table: ProcessorTable, broker: Broker, other_brokers: OtherBrokers) -> None:
        """`table`: where they go."""
        super().__init__()
        self._table, self._broker, self._other_brokers = table, broker, other_brokers
        self._inner: dict[int, Processor] = {}
        code = RequestCode
        self._answers: dict[int, tuple[type[CommandHeader], Callable[[_Question, Any], Later]]] = {
            code.SEND_MESSAGE: (SendMessageRequestHeader, self._send),
            code.SEND_MESSAGE_V2: (SendMessageRequestHeaderV2, self._send),
            code.SEND_BATCH_MESSAGE: (SendMessageRequestHeaderV2, self._send),
            code.PULL_MESSAGE: (PullMessageRequestHeader, self._pull),
            code.LITE_PULL_MESSAGE: (PullMessageRequestHeader, self._pull),
            code.UPDATE_CONSUMER_OFFSET: (UpdateConsumerOffsetRequestHeader, self._update_consumer_offset),
            code.QUERY_CONSUMER_OFFSET: (QueryConsumerOffsetRequestHeader, self._query_consumer_offset),
            code.SEARCH_OFFSET_BY_TIMESTAMP: (SearchOffsetRequestHeader, self._search_offset),
            code.GET_MAX_OFFSET: (GetMaxOffsetRequestHeader, self._max_offset),
            code.GET_MIN_OFFSET: (GetMinOffsetRequestHeader, self._min_offset),
            code.GET_EARLIEST_MSG_STORETIME: (
                GetEarliestMsgStoretimeRequestHeader,
                self._earliest_store_time,
            ),
        }

    def register(self, codes: int | Iterable[int], processor: Processor) -> None:
        for code in (codes,) if isinstance(codes, int) else codes:
            self._table.register(code, self._before(code, processor) if code in self._answers else processor)

    def find(self, code: int) -> tuple[Processor, bool] | None:
        return self._table.find(code)

    def _before(self, code: int, inner: Processor) -> Processor:
        header_class, answer = self._answers[code]
        mappings = self._broker.topic_queue_mapping_manager
        self._inner[code] = inner

        def processor(connection: Connection, request: RemotingCommand) -> Later:
            if not mappings.table:
                return inner(connection, request)
            header: Any = request.decode_header(header_class)
            detail = mappings.table.get(header.topic)
            if detail is None or header.lo is False:
                return inner(connection, request)
            queue_id = header.queue_id
            if queue_id < 0 and isinstance(header, SendMessageRequestHeader | SendMessageRequestHeaderV2):
                queue_id = _any_led(detail)
            return answer(_Question(connection, request, inner, detail, queue_id), header)

        return processor

    # --- sends

    def _send(
        self, question: _Question, header: SendMessageRequestHeader | SendMessageRequestHeaderV2
    ) -> Later:
        """Taken by the leader. A half message keeps its offset, by which its transaction is ended."""
        item = question.leader
        physical = dataclasses.replace(header, queue_id=item.queue_id)
        prepared = _is_prepared(header)

        def rewritten(answer: RemotingCommand) -> RemotingCommand:
            known = answer.ext_fields
            if "queueOffset" in known:
                known["queueId"] = str(question.queue_id)
                if not prepared:
                    known["queueOffset"] = str(item.logical_or_unknown(int(known["queueOffset"])))
            return answer

        return _then(question.here(physical), rewritten)

    # --- pulls

    def _pull(self, question: _Question, header: PullMessageRequestHeader) -> Later:
        item = question.item_at(header.queue_offset)
        offset = item.physical(header.queue_offset)
        if header.sys_flag & COMMIT_OFFSET_FLAG:
            self._commit(question, header)
        physical = dataclasses.replace(
            header,
            queue_id=item.queue_id,
            queue_offset=offset,
            sys_flag=header.sys_flag & ~COMMIT_OFFSET_FLAG,
            lo=False,
            bname=item.bname,
        )
        if item.has_end:
            physical.max_msg_nums = max(min(item.end_offset - offset, header.max_msg_nums), 1)
        if item is question.leader:
            return _then(
                question.here(physical),
                lambda answer: _of_the_logical_queue(question, item, offset, answer),
            )
        physical.sys_flag &= ~SUSPEND_FLAG  # what follows its end is in another part
        return self._pull_older(question, item, offset, physical, header)

    async def _pull_older(
        self,
        question: _Question,
        item: LogicQueueMappingItem,
        offset: int,
        physical: PullMessageRequestHeader,
        header: PullMessageRequestHeader,
    ) -> RemotingCommand:
        answer = await self._ask(question, item, physical)
        answer = _of_the_logical_queue(question, item, offset, answer)
        if "suggestWhichBrokerId" in answer.ext_fields:
            # a replica of that broker, and the client will ask the leader
            answer.ext_fields["suggestWhichBrokerId"] = str(MASTER_ID)
        if answer.code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & SUSPEND_FLAG:
            await asyncio.sleep(min(header.suspend_timeout_millis / 1000, PAUSE_MAX_S))
        return answer

    def _commit(self, question: _Question, header: PullMessageRequestHeader) -> None:
        """The offset that a pull brings along. As with a oneway request nobody waits for it."""
        commit = UpdateConsumerOffsetRequestHeader(
            consumer_group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            commit_offset=header.commit_offset,
        )
        item = question.item_at(header.commit_offset)
        if question.is_here(item):
            self._broker.consumer_offset_manager.commit_offset(
                question.connection.remote_address,
                header.consumer_group,
                header.topic,
                item.queue_id,
                max(item.physical(header.commit_offset), item.start_offset),
            )
            return
        later = asyncio.ensure_future(self._commit_elsewhere(item, _commit_for(item, commit)))
        question.connection.stop_waits_for(later)

    async def _commit_elsewhere(
        self, item: LogicQueueMappingItem, header: UpdateConsumerOffsetRequestHeader
    ) -> Answer:
        with contextlib.suppress(MqlakeError):  # the client commits again
            await self._forward(item, RequestCode.UPDATE_CONSUMER_OFFSET, header)
        return None

    # --- offsets of groups

    def _update_consumer_offset(
        self, question: _Question, header: UpdateConsumerOffsetRequestHeader
    ) -> Later:
        """Kept by the broker of the part that it lies in."""
        item = question.item_at(header.commit_offset)
        commit = _commit_for(item, header)
        if question.is_here(item):
            return question.here(commit)
        return self._forward(item, question.request.code, commit)

    def _query_consumer_offset(self, question: _Question, header: QueryConsumerOffsetRequestHeader) -> Later:
        """The double read: a group has its offset where it was last, so the newest part is asked first."""
        only = question.leader
        if len(question.items) == 1 and only.logic_offset == 0:
            physical = dataclasses.replace(header, queue_id=only.queue_id)
            return _then(question.here(physical), functools.partial(_shifted, only))
        return self._double_read(question, header)

    async def _double_read(
        self, question: _Question, header: QueryConsumerOffsetRequestHeader
    ) -> RemotingCommand:
        for item in reversed(question.decided()):
            answer = await self._ask(question, item, dataclasses.replace(header, set_zero_if_not_found=False))
            if answer.code != ResponseCode.QUERY_NOT_FOUND:
                return _shifted(item, answer)
        raise ResponseError(ResponseCode.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")

    # --- the ends of queues, and times

    async def _max_offset(self, question: _Question, header: GetMaxOffsetRequestHeader) -> RemotingCommand:
        item = question.decided()[-1]
        answer = (await self._ask_well(question, item, header)).decode_header(GetMaxOffsetResponseHeader)
        return _response(GetMaxOffsetResponseHeader(offset=item.logical(answer.offset)))

    async def _min_offset(self, question: _Question, header: GetMinOffsetRequestHeader) -> RemotingCommand:
        item = question.item_at(0)
        answer = (await self._ask_well(question, item, header)).decode_header(GetMinOffsetResponseHeader)
        return _response(GetMinOffsetResponseHeader(offset=item.logical_or_unknown(answer.offset)))

    async def _earliest_store_time(
        self, question: _Question, header: GetEarliestMsgStoretimeRequestHeader
    ) -> RemotingCommand:
        """Answers with the time of the first part that has messages."""
        timestamp = -1
        for item in question.decided():
            timestamp = await self._first_store_time(question, item, header)
            if timestamp >= 0:
                break
        return _response(GetEarliestMsgStoretimeResponseHeader(timestamp=timestamp))

    async def _first_store_time(
        self, question: _Question, item: LogicQueueMappingItem, header: CommandHeader
    ) -> int:
        answer = await self._ask_well(question, item, header, RequestCode.GET_EARLIEST_MSG_STORETIME)
        return answer.decode_header(GetEarliestMsgStoretimeResponseHeader).timestamp

    async def _search_offset(self, question: _Question, header: SearchOffsetRequestHeader) -> RemotingCommand:
        """In the first part whose end is later, or for an upper boundary the last one that begins before."""
        if (header.boundary_type or "lower").lower() == "upper":
            item = await self._last_before(question, header)
        else:
            item = await self._first_after(question, header)
        found = (await self._ask_well(question, item, header)).decode_header(SearchOffsetResponseHeader)
        return _response(SearchOffsetResponseHeader(offset=item.logical(found.offset)))

    async def _first_after(
        self, question: _Question, header: SearchOffsetRequestHeader
    ) -> LogicQueueMappingItem:
        *older, item = question.decided()
        for each in older:
            found = (await self._ask_well(question, each, header)).decode_header(SearchOffsetResponseHeader)
            end = await self._ask_well(question, each, _end_of(header), RequestCode.GET_MAX_OFFSET)
            if found.offset < end.decode_header(GetMaxOffsetResponseHeader).offset:
                return each
        return item

    async def _last_before(
        self, question: _Question, header: SearchOffsetRequestHeader
    ) -> LogicQueueMappingItem:
        item, *newer = question.decided()
        first = GetEarliestMsgStoretimeRequestHeader(topic=header.topic, queue_id=header.queue_id)
        for each in reversed(newer):
            if 0 <= await self._first_store_time(question, each, first) <= header.timestamp:
                return each
        return item

    # --- who has a part

    async def _ask_well(
        self,
        question: _Question,
        item: LogicQueueMappingItem,
        header: CommandHeader,
        code: int | None = None,
    ) -> RemotingCommand:
        """As _ask(); what is no success is the answer to the client."""
        answer = await self._ask(question, item, header, code)
        if answer.code != ResponseCode.SUCCESS:
            raise ResponseError(answer.code, answer.remark or "")
        return answer

    async def _ask(
        self,
        question: _Question,
        item: LogicQueueMappingItem,
        header: Any,
        code: int | None = None,
    ) -> RemotingCommand:
        """The answer for the physical queue of a part, from the broker that has it, whatever its code."""
        physical = dataclasses.replace(header, queue_id=item.queue_id, lo=False, bname=item.bname)
        code = question.request.code if code is None else code
        if not question.is_here(item):
            return await self._forward(item, code, physical)
        request = RemotingCommand.create_request(code, physical)
        try:
            answer = self._inner[code](question.connection, request)
            found = await answer if isinstance(answer, Awaitable) else answer
        except ResponseError as error:
            return RemotingCommand.create_response(error.code, error.remark)
        assert found is not None
        return found

    async def _forward(
        self, item: LogicQueueMappingItem, code: int, header: CommandHeader
    ) -> RemotingCommand:
        """The other broker's answer, whatever its code. ResponseError if there is none."""
        request = RemotingCommand.create_request(code, header)
        timeout_s = self._broker.config.forward_timeout / 1000
        try:
            return await self._other_brokers.ask(item.bname, request, timeout_s)
        except ResponseError:
            raise
        except MqlakeError as error:
            raise ResponseError(
                ResponseCode.SYSTEM_ERROR, f"the broker {item.bname} has this part of the queue: {error}"
            ) from error


def _then(answer: Later, rewrite: Callable[[RemotingCommand], RemotingCommand]) -> Later:
    """The answer, rewritten when it is there."""
    if answer is None:
        return None
    if isinstance(answer, RemotingCommand):
        return rewrite(answer)
    inner: asyncio.Future[Answer] = asyncio.ensure_future(answer)
    later: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    def done(inner: asyncio.Future[Answer]) -> None:
        if later.done():
            return
        if inner.cancelled():
            later.cancel()
        elif error := inner.exception():
            later.set_exception(error)
        else:
            found = inner.result()
            later.set_result(None if found is None else rewrite(found))

    def given_up(later: asyncio.Future[Answer]) -> None:
        # as a connection does with what waits, and not with what works
        if later.cancelled() and not isinstance(inner, asyncio.Task):
            inner.cancel()

    inner.add_done_callback(done)
    later.add_done_callback(given_up)
    return later


def _any_led(detail: TopicQueueMappingDetail) -> int:
    """A logical queue that this broker leads, for a send that leaves the choice to it; -1 if there is none."""
    led = [queue_id for queue_id, items in detail.hosted_queues.items() if leads(items, detail)]
    return random.choice(led) if led else -1


def _is_prepared(header: SendMessageRequestHeader | SendMessageRequestHeaderV2) -> bool:
    properties = header.properties or ""
    if PROPERTY_TRANSACTION_PREPARED not in properties:
        return False
    return string_to_properties(properties).get(PROPERTY_TRANSACTION_PREPARED, "").lower() == "true"


def _commit_for(
    item: LogicQueueMappingItem, header: UpdateConsumerOffsetRequestHeader
) -> UpdateConsumerOffsetRequestHeader:
    return dataclasses.replace(
        header,
        queue_id=item.queue_id,
        commit_offset=max(item.physical(header.commit_offset), item.start_offset),
        lo=False,
        bname=item.bname,
    )


def _end_of(header: SearchOffsetRequestHeader) -> GetMaxOffsetRequestHeader:
    return GetMaxOffsetRequestHeader(topic=header.topic, queue_id=header.queue_id)


def _response(header: CommandHeader) -> RemotingCommand:
    return RemotingCommand.create_response(header=header)


def _shifted(item: LogicQueueMappingItem, answer: RemotingCommand) -> RemotingCommand:
    """The offset of a group, of the logical queue."""
    if answer.code == ResponseCode.SUCCESS:
        offset = answer.decode_header(QueryConsumerOffsetResponseHeader).offset
        answer.ext_fields["offset"] = str(item.logical(offset))
    return answer


def _of_the_logical_queue(
    question: _Question, item: LogicQueueMappingItem, offset: int, answer: RemotingCommand
) -> RemotingCommand:
    """A pull's answer for the physical queue of `item`, from its `offset`, in offsets of the logical queue. What is
    nothing at the end of an older part leads to the next one."""
    fields = answer.ext_fields
    if "nextBeginOffset" not in fields:  # it was refused
        return answer
    following, low, high = (int(fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
    if answer.code != ResponseCode.SUCCESS:
        if offset < low:
            following = low
            first = find_item(question.items, 0)
            answer.code = (
                ResponseCode.PULL_OFFSET_MOVED if item is first else ResponseCode.PULL_RETRY_IMMEDIATELY
            )
        elif item is question.leader:
            if offset > high and answer.code == ResponseCode.PULL_OFFSET_MOVED:
                following = high
        elif offset >= high or (item.has_end and offset >= item.end_offset):
            part = next_item(question.items, item)
            if part is None:  # it is not decided yet where it begins
                answer.code = ResponseCode.PULL_NOT_FOUND
            else:
                item = part
                following = low = high = part.start_offset
                answer.code = ResponseCode.PULL_RETRY_IMMEDIATELY
    if item.has_end:
        following = min(following, item.end_offset)
    fields["nextBeginOffset"] = str(item.logical(following))
    fields["minOffset"] = str(item.logical(max(item.start_offset, low)))
    fields["maxOffset"] = str(max(item.logical(high), max_offset_of_mapping(question.items)))
    fields["offsetDelta"] = str(item.logic_offset - item.start_offset)
    return answer
