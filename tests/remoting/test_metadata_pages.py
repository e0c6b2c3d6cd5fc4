"""Pages of topics and groups from a master that counts as RocketMQ 5.5.1 does, that changes while it is read, or that
knows no pages. The live master is in tests/interop/test_replication.py."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import ResponseError
from mqlake.remoting.bodies.admin import SubscriptionGroupConfig, SubscriptionGroupWrapper
from mqlake.remoting.bodies.topic import DataVersion, TopicConfig, TopicConfigAndMappingSerializeWrapper
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.codec import CommandHeader
from mqlake.remoting.metadata_pages import all_groups, all_topics


class Master:
    """AdminBrokerProcessor of 5.5.1: the pages of a table in the order of its names. `changes`: before which requests
    a name comes to it."""

    def __init__(self, names: int, split: int, changes: tuple[int, ...] = (), *, old: bool = False) -> None:
        self.names = {f"n{number:05}" for number in range(names)}
        self.version = DataVersion(timestamp=1_000)
        self.requests = 0
        self._split, self._changes, self._old = split, changes, old

    async def ask(self, code: RequestCode, header: CommandHeader) -> RemotingCommand:
        if self.requests in self._changes:
            self.names.add(f"a{self.requests}")
            self.version.next_version()
        self.requests += 1
        is_topics = code is RequestCode.GET_ALL_TOPIC_CONFIG
        fields = header.encode()
        seq = int(fields["topicSeq" if is_topics else "groupSeq"])
        most = int(fields["maxTopicNum" if is_topics else "maxGroupNum"])
        asked = fields.get("dataVersion") or "null"
        names = sorted(self.names)
        if not self._old:
            begin = seq if json.loads(asked) == json.loads(self.version.to_json()) else 0
            names = names[begin : begin + min(self._split, most)]
        body = (
            TopicConfigAndMappingSerializeWrapper(
                topic_config_table={name: TopicConfig(topic_name=name) for name in names},
                data_version=self.version,
            ).to_json()
            if is_topics
            else SubscriptionGroupWrapper(
                subscription_group_table={name: SubscriptionGroupConfig(group_name=name) for name in names},
                forbidden_table={name: {"T": 1} for name in names},
                data_version=self.version,
            ).to_json()
        )
        answer = RemotingCommand.create_response(body=body)
        if not self._old:
            answer.ext_fields["totalTopicNum" if is_topics else "totalGroupNum"] = str(len(self.names))
        return answer


@given(
    st.integers(0, 50),
    st.integers(1, 20),
    st.integers(1, 20),
    st.sets(st.integers(0, 12), max_size=5),
    st.booleans(),
)
def test_all_of_a_table_that_changes_while_it_is_read(
    names: int, split: int, page: int, changes: set[int], old: bool
) -> None:
    master = Master(names, split, tuple(changes), old=old)
    topics = asyncio.run(all_topics(master.ask, page=page))
    assert topics.topic_config_table.keys() == master.names
    assert topics.data_version == master.version
    master = Master(names, split, tuple(changes), old=old)
    groups = asyncio.run(all_groups(master.ask, page=page))
    assert groups.subscription_group_table.keys() == (groups.forbidden_table or {}).keys() == master.names


@pytest.mark.parametrize(("names", "requests"), [(1, 1), (2000, 1), (2001, 2), (4001, 3)])
def test_a_last_page_of_one_is_asked_for(names: int, requests: int) -> None:
    master = Master(names, 2000)
    assert len(asyncio.run(all_topics(master.ask)).topic_config_table) == names
    assert master.requests == requests


def test_a_table_that_is_known_is_not_read_to_its_end() -> None:
    master = Master(30, 10)
    found = asyncio.run(all_topics(master.ask, known=DataVersion(timestamp=1_000)))
    assert (found.data_version, master.requests) == (master.version, 1)


def test_answers_without_an_end_are_given_up() -> None:
    master = Master(50, 10, tuple(range(1, 1000)))
    with pytest.raises(ResponseError, match="changed 21 times"):
        asyncio.run(all_topics(master.ask))

    async def stuck(code: RequestCode, header: CommandHeader) -> RemotingCommand:
        answer = await Master(1, 10).ask(code, header)
        answer.ext_fields["totalTopicNum"] = "2"
        return answer

    with pytest.raises(ResponseError, match="1 of 2"):
        asyncio.run(all_topics(stuck))
