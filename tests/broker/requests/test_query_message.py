from __future__ import annotations

from mqlake.formats.record import decode_record
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.consume import (
    QueryMessageRequestHeader,
    QueryMessageResponseHeader,
    ViewMessageRequestHeader,
)
from tests.broker.live_broker import Client, live_broker, put, run


async def query(client, key, max_num=10, begin=0, end=1 << 62, topic="T", **fields):
    header = QueryMessageRequestHeader(
        topic=topic, key=key, max_num=max_num, begin_timestamp=begin, end_timestamp=end
    )
    return await client.ask(RequestCode.QUERY_MESSAGE, header, **fields)


def bodies(answer):
    found, at = [], 0
    while at < len(answer.body):
        message = decode_record(answer.body, at)
        found.append(message.body)
        at += message.store_size
    return found


def test_by_key(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            stored = [put(controller, "T", b"%d" % number, keys=f"k{number % 2} all") for number in range(6)]
            answer = await query(client, "k1")
            assert answer.code == ResponseCode.SUCCESS and bodies(answer) == [b"1", b"3", b"5"]
            header = answer.decode_header(QueryMessageResponseHeader)
            assert header.index_last_update_phyoffset == stored[-1].physical_offset
            assert header.index_last_update_timestamp == stored[-1].store_timestamp
            assert bodies(await query(client, "all", max_num=2)) == [b"4", b"5"]

    run(main())


def test_by_unique_key_the_number_asked_for_does_not_count(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            for number in range(33):
                put(controller, "T", b"%d" % number, properties={"UNIQ_KEY": "ID"})
            assert len(bodies(await query(client, "ID", max_num=1))) == 1
            for asked in (1, 40):
                found = await query(client, "ID", max_num=asked, _UNIQUE_KEY_QUERY="true")
                assert len(bodies(found)) == 32

    run(main())


def test_what_is_not_there(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            message = put(controller, "T", b"", keys="k")
            for answer in (
                await query(client, "none"),
                await query(client, "k", topic="U"),
                await query(client, "k", end=message.store_timestamp - 1),
                await query(client, "k", begin=message.store_timestamp + 1),
                await query(client, "k", max_num=0),
                await query(client, "k", max_num=-5),
            ):
                assert answer.code == ResponseCode.QUERY_NOT_FOUND
                assert answer.remark.startswith("can not find message, maybe time range not correct")

    run(main())


def test_by_place(tmp_path):
    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            put(controller, "T", b"first")
            message = put(controller, "T", b"second", store_host=("::1", 5))

            async def view(offset):
                return await client.ask(
                    RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequestHeader(offset=offset)
                )

            answer = await view(message.physical_offset)
            assert answer.code == ResponseCode.SUCCESS and bodies(answer) == [b"second"]
            end = controller.broker.store.max_phy_offset
            for offset in (
                message.physical_offset + 1,
                message.physical_offset - 4,
                end,
                end + 9,
                -1,
                1 << 60,
            ):
                answer = await view(offset)
                assert answer.code == ResponseCode.SYSTEM_ERROR
                assert answer.remark.startswith(f"can not find message by the offset, {offset}:")

    run(main())


def test_a_body_that_looks_like_a_record_is_none(tmp_path):
    """No id that a client makes up gets it the inside of a message."""

    async def main():
        async with live_broker(tmp_path) as controller, Client(controller) as client:
            store = controller.broker.store
            record = bytes(store.select_one_message_by_offset(put(controller).physical_offset))
            for change in (
                lambda place: record,  # of another place
                lambda place: record[:4] + bytes(4) + record[8:28] + place.to_bytes(8, "big") + record[36:],
                lambda place: (20).to_bytes(4, "big") + record[4:20],  # too short for one
            ):
                inside = store.max_phy_offset + 88
                body = change(inside)
                assert put(controller, body=body).physical_offset == inside - 88
                assert store.select_one_message_by_offset(inside) == body
                header = ViewMessageRequestHeader(offset=inside)
                answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, header)
                assert answer.code == ResponseCode.SYSTEM_ERROR and "no message begins there" in answer.remark

    run(main())
