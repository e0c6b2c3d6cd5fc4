"""AdminBrokerProcessor: the request codes of operators and their tools, by family.

    topic      topics: create, change, delete, list; their offsets
    group      consumer groups: create, change, delete, list; their permissions
    consume    progress of groups, connections, state of consumers
    offset     offsets of queues; resets and clones of groups' offsets
    store      queues, counters, what waits in the timer wheel, cleaning
    config     settings, and the broker's figures
    replication  master and slaves: who has how much; where the master is
    access     users and acls
    plain_access  accounts of plain_acl.yml

Codes of RocketMQ for features that mqlake lacks are answered REQUEST_CODE_NOT_SUPPORTED, naming the feature.
"""

from __future__ import annotations

from mqlake.broker.admin.access import AccessAdmin
from mqlake.broker.admin.config import ConfigAdmin
from mqlake.broker.admin.consume import ConsumeAdmin
from mqlake.broker.admin.group import GroupAdmin
from mqlake.broker.admin.offset import OffsetAdmin
from mqlake.broker.admin.plain_access import PlainAccessAdmin
from mqlake.broker.admin.replication import ReplicationAdmin
from mqlake.broker.admin.store import StoreAdmin
from mqlake.broker.admin.topic import TopicAdmin
from mqlake.broker.broker import Broker
from mqlake.broker.metrics.execution_times import ExecutionTimes
from mqlake.broker.services.broker_to_client import Broker2Client
from mqlake.broker.services.pull_request_hold import PullRequestHoldService
from mqlake.broker.services.replication import Replication
from mqlake.broker.services.schedule_message import ScheduleMessageService
from mqlake.errors import ResponseError
from mqlake.remoting.codes import ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.processors import answers
from mqlake.store.timer.timer_message_store import TimerMessageStore

NOT_THERE: dict[int, str] = {
    323: "the checking of transactions again",
    1007: "controller mode",
    1008: "controller mode",
    2001: "thresholds for cold data: reading it does not delay other requests here",
    **dict.fromkeys(range(50, 55), "accounts of plain_acl.yml, because aclEnable is off"),
    **dict.fromkeys(range(3001, 3011), "users and acls, because authenticationEnabled is off"),
}


class AdminBrokerProcessor:
    def __init__(
        self,
        broker: Broker,
        broker_to_client: Broker2Client,
        pull_request_hold_service: PullRequestHoldService,
        schedule_message_service: ScheduleMessageService,
        timers: TimerMessageStore | None,
        replication: Replication,
    ) -> None:
        self.topic_create_times = ExecutionTimes()
        self.group_create_times = ExecutionTimes()
        self.families = (
            TopicAdmin(broker, self.topic_create_times),
            GroupAdmin(broker, self.group_create_times),
            ConsumeAdmin(broker, broker_to_client),
            OffsetAdmin(broker, broker_to_client, pull_request_hold_service, schedule_message_service),
            StoreAdmin(broker, timers),
            ConfigAdmin(broker, schedule_message_service, timers, replication),
            ReplicationAdmin(broker, replication),
            *(() if broker.access is None else (AccessAdmin(broker.access),)),
            *(() if broker.plain_access is None else (PlainAccessAdmin(broker, broker.plain_access),)),
        )

    @answers(NOT_THERE)
    def not_there(self, request: RemotingCommand) -> RemotingCommand:
        raise ResponseError(
            ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
            f" request type {request.code} not supported: this broker does not have {NOT_THERE[request.code]}",
        )
