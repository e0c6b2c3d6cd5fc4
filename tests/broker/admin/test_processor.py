from __future__ import annotations

from mqlake.broker.admin.processor import NOT_THERE
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.headers.admin import DeleteTopicRequestHeader
from tests.broker.live import Peer, on_a_broker

ADMIN_CODES = [
    *(17, 18, 21, 25, 26, 28, 29, 30, 31, 32, 43, 200, 201, 202, 203, 204, 207, 208, 215, 222, 223, 225),
    *(300, 303, 305, 306, 307, 308, 309, 314, 315, 316, 317, 321, 328, 329, 343, 345, 351, 352, 353),
    *(354, 355, 401, 402, 907, 908, 2002, 2003, 2004, 200056),
]


def test_what_is_not_there_is_said(tmp_path):
    async def scene(peer: Peer) -> None:
        for code, what in NOT_THERE.items():
            answer = await peer.ask(code)
            assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED, code
            assert what in (answer.remark or "")

    on_a_broker(tmp_path, scene)


def test_fields_that_are_missing_or_wrong_are_named(tmp_path):
    async def scene(peer: Peer) -> None:
        answer = await peer.ask(RequestCode.GET_TOPIC_STATS_INFO)
        assert (answer.code, answer.remark) == (
            ResponseCode.SYSTEM_ERROR,
            "the custom field <topic> is null",
        )
        answer = await peer.ask(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicRequestHeader(topic=" "))
        assert (answer.code, answer.remark) == (
            ResponseCode.INVALID_PARAMETER,
            "The specified topic is blank.",
        )
        answer = await peer.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=b"{nonsense")
        assert answer.code == ResponseCode.SYSTEM_ERROR and answer.remark

    on_a_broker(tmp_path, scene)


def test_every_code_is_known(tmp_path):
    async def scene(peer: Peer) -> None:
        table = peer.controller.server.processors
        assert [code for code in ADMIN_CODES if table.find(code) is None] == []

    on_a_broker(tmp_path, scene)
