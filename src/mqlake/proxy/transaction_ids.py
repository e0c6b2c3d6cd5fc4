"""Transaction ids, and a broker's question about an open transaction.

The transaction id says where the half message is, so nothing has to be remembered between the send (or the broker's
question) and the end: it works after a restart, at another proxy and as often as wanted.

    transaction id   base64 of  v1 broker halfQueueOffset physicalOffset messageId
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from mqlake.client.records import decode_messages
from mqlake.proxy.messages import sent_message
from mqlake.proxy.status import StatusError
from mqlake.proxy.v2.definition_pb2 import Code, Resource
from mqlake.proxy.v2.service_pb2 import RecoverOrphanedTransactionCommand
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import CheckTransactionStateRequestHeader


class TransactionId(NamedTuple):
    """The place of a half message. `offset`: in the queue of half messages; `physical_offset`: in the commit log."""

    broker_name: str
    offset: int
    physical_offset: int
    message_id: str

    @property
    def text(self) -> str:
        return base64.urlsafe_b64encode(" ".join(map(str, ("v1", *self))).encode()).decode()

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """Parses a transaction id. StatusError INVALID_TRANSACTION_ID."""
        if not text.strip():
            raise StatusError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        try:
            version, broker, offset, physical_offset, message_id = (
                base64.b64decode(text, altchars=b"-_", validate=True).decode().split(" ", 4)
            )
            if version == "v1" and broker and max(len(offset), len(physical_offset)) < 20:
                return cls(broker, int(offset), int(physical_offset), message_id)
        except (binascii.Error, ValueError):
            pass
        raise StatusError(
            Code.INVALID_TRANSACTION_ID,
            f"{text[:100]!r} is not a transaction id: use the one that sending the message returned",
        )


def orphan(request: RemotingCommand) -> RecoverOrphanedTransactionCommand | None:
    """A broker's CHECK_TRANSACTION_STATE for a client; None if it holds no message."""
    header = request.decode_header(CheckTransactionStateRequestHeader)
    messages = decode_messages(request.body_bytes(), header.bname or "")
    if len(messages) != 1:
        return None
    message = messages[0]
    place = TransactionId(
        header.bname or "",
        header.tran_state_table_offset,
        header.commit_log_offset,
        header.transaction_id or message.uniq_key or message.msg_id,
    )
    sent = sent_message(message, Resource(name=message.topic), attempt=message.reconsume_times + 1)
    return RecoverOrphanedTransactionCommand(message=sent, transaction_id=place.text)
