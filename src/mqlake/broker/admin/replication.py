"""Requests around replication: who has how much, where the master is, and the change of a slave to a master."""

from __future__ import annotations

from mqlake.broker.broker import Broker
from mqlake.broker.services.replication import Replication
from mqlake.errors import ResponseError
from mqlake.remoting.bodies.route import MASTER_ID
from mqlake.remoting.codes import RequestCode, ResponseCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.admin import (
    ExchangeHAInfoRequestHeader,
    ExchangeHAInfoResponseHeader,
    NotifyMinBrokerIdChangeRequestHeader,
    ResetMasterFlushOffsetHeader,
)
from mqlake.remoting.processors import answers


class ReplicationAdmin:
    def __init__(self, broker: Broker, replication: Replication) -> None:
        self._broker = broker
        self._replication = replication

    @answers(RequestCode.GET_BROKER_HA_STATUS)
    def get_broker_ha_status(self) -> RemotingCommand:
        return RemotingCommand.create_response(body=self._replication.runtime_info().to_json())

    @answers(RequestCode.EXCHANGE_BROKER_HA_INFO)
    def exchange_broker_ha_info(self, header: ExchangeHAInfoRequestHeader) -> RemotingCommand:
        """906 EXCHANGE_BROKER_HA_INFO: without fields a master answers with its addresses; with them, a slave takes
        them."""
        broker = self._broker
        if header.master_ha_address is not None:
            if broker.is_slave:
                self._replication.set_master(header.master_address, header.master_ha_address)
            return RemotingCommand.create_response()
        if broker.config.broker_id != MASTER_ID:
            return RemotingCommand.create_response()
        return RemotingCommand.create_response(
            header=ExchangeHAInfoResponseHeader(
                master_ha_address=broker.ha_server_addr,
                master_flush_offset=self._replication.master_flush_offset,
                master_address=broker.broker_addr,
            )
        )

    @answers(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE)
    def notify_min_broker_id_change(self, header: NotifyMinBrokerIdChangeRequestHeader) -> RemotingCommand:
        """905 NOTIFY_MIN_BROKER_ID_CHANGE: a slave learns at once that its master is back, or elsewhere."""
        broker = self._broker
        is_meant = header.broker_name in (None, broker.config.broker_name)
        if broker.is_slave and is_meant and header.min_broker_id == MASTER_ID:
            self._replication.set_master(header.min_broker_addr, header.ha_broker_addr)
        return RemotingCommand.create_response()

    @answers(RequestCode.RESET_MASTER_FLUSH_OFFSET)
    def reset_master_flush_offset(self, request: RemotingCommand) -> RemotingCommand:
        """908 RESET_MASTER_FLUSH_OFFSET: sets the figure on a slave; a master ignores it, as RocketMQ's does."""
        if self._broker.is_slave:
            header = request.decode_header(ResetMasterFlushOffsetHeader)
            if header.master_flush_offset < 0:
                raise ResponseError(ResponseCode.INVALID_PARAMETER, "masterFlushOffset is negative")
            self._replication.master_flush_offset = header.master_flush_offset
        return RemotingCommand.create_response()
