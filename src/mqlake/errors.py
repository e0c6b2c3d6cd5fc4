"""The one error tree: every failure mqlake reports on purpose is one of these.

    MqlakeError
    ├── ConfigError                 a setting has a value that cannot be used
    │   ├── NotThereError           a file, a directory or a topic that was named is not there
    │   └── UnknownKeyError         a setting nobody knows; names the nearest known one
    │       └── NotFoundError       the same of a topic, a group, ...: what was asked for is not there
    ├── StoreError                  a store directory cannot be used as asked
    │   ├── NotAStoreError          the directory is not a RocketMQ store, or is not there
    │   ├── StoreLockedError        another process holds the store's lock
    │   ├── WrongFileSizeError      a file's length is not the configured one
    │   ├── ForeignFormatError      the files are of a format (or a newer version) not handled here
    │   ├── StoreClosedError        the store was shut down
    │   ├── StoreFencedError        an I/O error stopped all writing; reopen after the cause is mended
    │   ├── OffsetOutOfRangeError   an offset before the first or after the last message
    │   ├── ArchiveUnavailableError the place of an archive does not answer; try again
    │   └── StoreCorruptError       damage, named by file and offset
    ├── MessageError                a message cannot be stored as it is
    │   ├── IllegalTopicError
    │   ├── WrongPartitionError     the topic has no partition of that number
    │   ├── MessageTooLargeError
    │   └── PropertiesTooLargeError
    ├── FormatError                 bytes are not what they should be, named by offset
    │   ├── TruncatedRecordError    the bytes end inside the record
    │   ├── BadMagicError           neither a record nor a blank begins here
    │   ├── BadCrcError             the checksum does not match
    │   ├── BadLengthError          the lengths inside contradict each other
    │   └── UndecodableMessageError a consumer cannot have a message's body; names its queue, offset, id and broker
    ├── RemotingError               a request did not get its answer
    │   ├── ProtocolError           the peer sent bytes that are no frame; its connection is closed
    │   ├── HeaderError             a field of a command's header is missing or of the wrong type
    │   ├── RemotingConnectError    no connection, or it was lost before the answer
    │   │   └── HandshakeError      somebody answers, but not to TLS
    │   │       └── CertificateError    with a certificate that cannot be accepted; says what to do
    │   ├── RemotingTimeoutError    no answer in time
    │   ├── RemotingTooMuchError    more requests in flight than allowed
    │   └── ResponseError           the answer is a response code other than SUCCESS
    ├── FailoverError               the failover service, or what stands in it, cannot be used
    │   └── FailoverUnavailableError    it did not answer: a write may have been done, or be done later
    ├── FilterExpressionError       a subscription's filter cannot be understood; says where
    ├── MappingError                a mapping of a static topic that brokers cannot serve; says which part
    ├── ClientError                 a client cannot do what it was asked
    │   ├── ClientClosedError       it was not started, or is closed
    │   ├── NoNameServerError       none of the name servers answers; says each and why
    │   ├── NoMasterError           no broker that takes messages is registered (yet); try again
    │   ├── TopicNotFoundError      no name server knows the topic, or nobody lets it be written or read
    │   ├── BrokerNotFoundError     no name server knows an address of the broker
    │   ├── SendError               a message was not stored; says what was tried
    │   └── NoReplyError            nobody replied to a request in time
    ├── TransactionError            a MetaQ transaction cannot go on as asked
    │   └── XAError                 the same of an XA transaction, with the code that XA gives it
    ├── TableError                  a table cannot be used, or gone on with, as asked; says what to do
    │   ├── TableConflictError      another commit came first; nothing of this one is in the table
    │   └── TableUnavailableError   a catalog or a storage does not answer; try again
    ├── UnfitHeadsError             a Parquet file of heads is damaged, or of another log; the log is read in its place
    ├── SparkJobError               a Spark job ended with an error; says the cause in a line
    └── MissingPartError            an optional part (Java, PySpark, ...) is absent; says what installs it

The command line prints `str(error)` and ends with `exit_code`; a library caller catches the class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any


class MqlakeError(Exception):
    """Root of the tree. `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(MqlakeError):
    exit_code = 2


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like another, None when none does."""
    import difflib

    lowered = {each.lower(): each for each in known}
    near = difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.5)
    return lowered[near[0]] if near else None


def did_you_mean(near: str | None) -> str:
    """Returns the end of a sentence about a name that nobody knows."""
    return f"; did you mean {near!r}?" if near else ""


class UnknownKeyError(ConfigError):
    """`key` is not among `known`; the sentence names the nearest known one when there is one."""

    def __init__(self, key: str, known: Iterable[str], *, what: str = "configuration key") -> None:
        self.key = key
        self.nearest = nearest(key, known)
        super().__init__(f"unknown {what} {key!r}{did_you_mean(self.nearest)}")


class NotThereError(ConfigError):
    """A file, a directory or a topic is not there, though it might be: that is no mistake in a command line."""

    exit_code = 1


class NotFoundError(UnknownKeyError):
    """Something that was asked for by its name is not there; names the nearest that is."""

    exit_code = 1

    def __init__(self, key: str, known: Iterable[str], *, what: str) -> None:
        super().__init__(key, known, what=what)


class StoreError(MqlakeError):
    pass


class NotAStoreError(StoreError):
    pass


class StoreLockedError(StoreError):
    pass


class WrongFileSizeError(StoreError):
    """`fitting`: the settings that the file was made with, `key` with its length unless said otherwise."""

    def __init__(self, path: str, size: int, expected: int, *, key: str, fitting: str = "") -> None:
        self.path, self.size, self.expected = path, size, expected
        if not fitting and " and " not in key:
            fitting = f"{key}={size}"
        super().__init__(
            f"{path}: {size} bytes, but {key} {'say' if ' and ' in key else 'says'} {expected}; "
            + ("the file was cut short, or " if size < expected else "")
            + f"the store was written with another {key}, with which it has to be opened"
            + (f": {fitting}" if fitting else "")
        )


class ForeignFormatError(StoreError):
    pass


class StoreClosedError(StoreError):
    pass


class StoreFencedError(StoreError):
    pass


class OffsetOutOfRangeError(StoreError):
    pass


class ArchiveUnavailableError(StoreError):
    """The bucket (or directory) of an archive does not answer, or not as it should: it may be asked again."""


class StoreCorruptError(StoreError):
    """Damage at `offset` (bytes from the start of the file `path`)."""

    def __init__(self, path: str, offset: int, reason: str, *, hint: str = "") -> None:
        self.path, self.offset, self.reason = path, offset, reason
        super().__init__(f"{path}: corrupt at byte {offset}: {reason}" + (f"; {hint}" if hint else ""))


class MessageError(MqlakeError):
    pass


class TimerMessageError(MessageError):
    """A timer message that cannot be stored; `status` is the name of RocketMQ's PutMessageStatus."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class IllegalTopicError(MessageError):
    pass


class WrongPartitionError(MessageError):
    pass


class MessageTooLargeError(MessageError):
    pass


class PropertiesTooLargeError(MessageError):
    pass


class FormatError(MqlakeError):
    """Bytes at `offset` (in the buffer that was read) are not what they should be."""

    def __init__(self, offset: int, reason: str) -> None:
        self.offset, self.reason = offset, reason
        super().__init__(f"at byte {offset}: {reason}")


class TruncatedRecordError(FormatError):
    pass


class BadMagicError(FormatError):
    pass


class BadCrcError(FormatError):
    pass


class BadLengthError(FormatError):
    pass


class UndecodableMessageError(FormatError):
    """`message` (a MessageClientExt) has its body as it is stored; `reason` says why it is no more than that."""

    def __init__(self, message: Any, reason: str) -> None:
        self.message = message
        self.topic: str = message.topic
        self.broker_name: str = message.broker_name
        self.queue_id: int = message.queue_id
        self.queue_offset: int = message.queue_offset
        self.next_offset: int = message.next_offset
        """Queue offset after the message."""
        # what was no record has no id
        self.msg_id: str = (message.uniq_key or message.msg_id) if message.store_size > 0 else ""
        self.offset, self.reason = 0, reason
        MqlakeError.__init__(
            self,
            f"message {self.msg_id or '(no id)'} of topic {message.read_topic}, broker {self.broker_name}, "
            f"queue {self.queue_id}, queue offset {self.queue_offset} cannot be decoded: {reason}",
        )


class RemotingError(MqlakeError):
    pass


class ProtocolError(RemotingError):
    pass


class HeaderError(RemotingError):
    pass


class RemotingConnectError(RemotingError):
    """The connection to `address` (host:port)."""

    def __init__(self, address: str, reason: str) -> None:
        self.address, self.reason = address, reason
        super().__init__(f"{address}: {reason}")


class HandshakeError(RemotingConnectError):
    pass


class CertificateError(HandshakeError):
    pass


class RemotingTimeoutError(RemotingError):
    def __init__(self, address: str, timeout_s: float) -> None:
        self.address, self.timeout_s = address, timeout_s
        super().__init__(f"{address}: no answer within {timeout_s:.2g} s")


class RemotingTooMuchError(RemotingError):
    pass


class ResponseError(RemotingError):
    """`code` is RocketMQ's response code, `remark` the text that came with it.

    A client raises it for an answer that is not SUCCESS; raised in a processor it is the answer. The sentence says what
    to do where RocketMQ's remark does not: an unsigned request is refused for a user name that nobody gave.
    """

    def __init__(self, code: int, remark: str = "") -> None:
        self.code, self.remark = int(code), remark
        hint = SIGN_HINT if UNSIGNED.search(remark or "") else ""
        super().__init__(f"{remark or 'no remark'} (code {self.code}){hint}")


UNSIGNED = re.compile(r"username cannot be null|No accessKey is configured")
"""Remarks of brokers with access control, ACL 2.0 and 1.0, to a request without a signature."""
SIGN_HINT = (
    "; requests must be signed here: --access-key and --secret-key, in a program access_key and secret_key"
)


class MappingError(MqlakeError):
    pass


class ClientError(MqlakeError):
    pass


class ClientClosedError(ClientError):
    pass


class NoNameServerError(ClientError):
    """`tried` is (address, what happened) of each name server."""

    def __init__(self, tried: Sequence[tuple[str, str]]) -> None:
        self.tried = list(tried)
        reasons = "; ".join(reason for _, reason in self.tried)
        super().__init__(f"no name server answers: {reasons or 'none is configured'}")


class NoMasterError(ClientError):
    """Name servers answer, and know no broker that takes messages: it is away, or has not registered again yet."""

    def __init__(self, addresses: Iterable[str]) -> None:
        super().__init__(
            f"no master is registered at {';'.join(addresses)}; "
            "see that a broker runs and names this server in namesrvAddr"
        )


class TopicNotFoundError(ClientError):
    def __init__(self, topic: str, reason: str) -> None:
        self.topic, self.reason = topic, reason
        super().__init__(f"topic {topic}: {reason}")


class BrokerNotFoundError(ClientError):
    def __init__(self, broker_name: str) -> None:
        self.broker_name = broker_name
        super().__init__(f"broker {broker_name}: no name server knows an address of it")


class SendError(ClientError):
    """`code` is the last broker's response code, None when none answered; `tried` is (broker name, what happened)."""

    def __init__(self, topic: str, code: int | None, tried: Sequence[tuple[str, str]]) -> None:
        self.topic, self.code, self.tried = topic, code, list(tried)
        times = "once" if len(self.tried) == 1 else f"{len(self.tried)} times"
        reasons = "; ".join(dict.fromkeys(f"{broker}: {reason}" for broker, reason in self.tried))
        super().__init__(f"topic {topic}: not stored, tried {times}: {reasons}")

    def add_wait(self, waited_s: float, in_flight: int) -> None:
        """Says how long the send had waited for its turn, and how many others of its producer were in flight then."""
        text = f"{waited_s:.2g} s in the producer's queue before, {in_flight} other sends in flight"
        self.args = (f"{self.args[0]} ({text})",)


class NoReplyError(ClientError):
    def __init__(self, topic: str, timeout_s: float) -> None:
        self.topic, self.timeout_s = topic, timeout_s
        super().__init__(f"topic {topic}: the request was stored, but nobody replied within {timeout_s:g} s")


class FailoverError(MqlakeError):
    """The failover service, or what stands in it, cannot be used."""


class FailoverUnavailableError(FailoverError):
    """The failover service did not answer: a write may have been done, or may still be."""


class FilterExpressionError(MqlakeError):
    exit_code = 2


class TransactionError(MqlakeError):
    pass


class XAError(TransactionError):
    """`code` is one of javax.transaction.xa.XAException's."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


class TableError(MqlakeError):
    pass


class UnfitHeadsError(MqlakeError):
    pass


class TableConflictError(TableError):
    pass


class TableUnavailableError(TableError):
    """A catalog or a storage does not answer, or did not answer a commit: what was asked may be asked again."""


class SparkJobError(MqlakeError):
    """`exit_code` is that of the error in a task or a source, if it was one of this tree."""

    def __init__(self, cause: str, *, exit_code: int = 1) -> None:
        self.exit_code = exit_code
        super().__init__(cause)


class MissingPartError(MqlakeError):
    """`part` is not installed; `command` is the line that installs it."""

    exit_code = 3

    def __init__(self, part: str, command: str, *, why: str = "") -> None:
        self.part, self.command = part, command
        super().__init__(f"{part} is missing{f' ({why})' if why else ''}; install it with: {command}")
