"""Frames: where one ends, what it says, and how it is written.

    i32 length          of all that follows
    u8  serialize type  of the header: 0 JSON, 1 ROCKETMQ
    u24 header length
    header
    body                length - 4 - header length bytes

    JSON header      {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
                      "remark":"..","serializeTypeCurrentRPC":"JSON","version":479}
    ROCKETMQ header  i16 code | u8 language | i16 version | i32 opaque | i32 flag | i32 n, remark
                     | i32 n, fields: n bytes of  (i16 n, key | i32 n, value)…

The ROCKETMQ form does not distinguish null from the empty text and has no codes beyond i16: such commands are
written as JSON. Text that UTF-8 cannot hold is written with `?`, as Java does, in both; a request with such text is
refused before (`RemotingCommand.create_request`). Every function here returns a result or raises ProtocolError.
Decoding never copies a body; reading a header takes a multiple of its size, so its size is limited.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import orjson

from mqlake.base import json_config
from mqlake.base.text import encodable
from mqlake.errors import FormatError, ProtocolError
from mqlake.remoting.codes import LanguageCode, SerializeType
from mqlake.remoting.command import RESPONSE_FLAG, Buffer, RemotingCommand

FRAME_SIZE_MAX = 16_777_216
"""Bytes of a whole frame, its length field included."""
HEADER_SIZE_MAX = 1 << 20
"""Bytes of a header that a server takes. The longest a client has reason to send is a message's properties (32 KiB),
escaped. An answer's may fill its frame, as RocketMQ's do: a batch is answered with the id of each of its messages."""
DIALECT_HEADER_SIZE_MAX = 64 * 1024
"""The limit for a header that only fastjson accepts: reading it is slow, and other connections wait."""
BODY_JOINED_MAX = 16 * 1024
"""Buffers of a body up to this size are copied after the header; if one is longer, all are sent without a copy."""

_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_PREFIX = struct.Struct(">iI")
_LENGTH = struct.Struct(">i")
_KEY_LENGTH = struct.Struct(">h")
_BINARY_HEAD = struct.Struct(">hBhiii")  # code, language, version, opaque, flag, length of the remark

# An enum's attributes are slow to reach.
_JSON, _OTHER_LANGUAGE = SerializeType.JSON, LanguageCode.OTHER
_ONLY_TEXT = frozenset([str])
_LANGUAGE_BY_NAME: dict[str, LanguageCode] = {language.name: language for language in LanguageCode}
_LANGUAGE_BY_CODE: dict[int, LanguageCode] = {int(language): language for language in LanguageCode}
_NAME_BY_LANGUAGE = {language: language.name for language in LanguageCode}

_HTTP = (b"GET ", b"HEAD", b"POST", b"PUT ", b"OPTI", b"HTTP")
"""First bytes that health checks and scanners send to the wrong port, and proxies answer."""


def frame_size(data: Buffer, start: int, end: int) -> int:
    """Bytes of the frame at `start`, 0 if more are needed to tell. ProtocolError if it is not a frame."""
    if end - start < 4:
        return 0
    size = int(_LENGTH.unpack_from(data, start)[0]) + 4
    if not 8 <= size <= FRAME_SIZE_MAX:
        text = bytes(data[start : start + 4])
        kind = f"; it begins with {text.decode()!r}, as HTTP does" if text in _HTTP else ""
        raise ProtocolError(f"a frame of {size} bytes: it must be 8 to {FRAME_SIZE_MAX}{kind}")
    return size


def frame_end(data: Buffer, start: int, end: int) -> int:
    """Returns the end of the frame at `start`, 0 if that is after `end`. ProtocolError if it is not a frame."""
    size = frame_size(data, start, end)
    return start + size if 0 < size <= end - start else 0


def decode_frame(
    data: memoryview, start: int, end: int, header_size_max: int = HEADER_SIZE_MAX
) -> RemotingCommand:
    """The command of the frame that fills `data[start:end]`; its body is a slice of `data`.

    Raises ProtocolError and nothing else.
    """
    header_word = _PREFIX.unpack_from(data, start)[1]
    header_size = header_word & 0xFFFFFF
    body_start = start + 8 + header_size
    if body_start > end:
        raise ProtocolError(f"a header of {header_size} bytes in a frame of {end - start}")
    if header_size > header_size_max:
        raise ProtocolError(f"a header of {header_size} bytes: more than {header_size_max}")
    header = data[start + 8 : body_start]
    kind = header_word >> 24
    if kind == 0:
        command = decode_json_header(header)
    elif kind == 1:
        command = decode_binary_header(header)
    else:
        raise ProtocolError(f"serialize type {kind} is not known")
    if body_start < end:
        command.body = data[body_start:end]
    return command


# --- JSON --------------------------------------------------------------------------------------------------


def decode_json_header(header: Buffer) -> RemotingCommand:
    """The command of a JSON header, without a body. ProtocolError."""
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as strict_error:
        # fastjson accepts more than JSON
        if len(header) > DIALECT_HEADER_SIZE_MAX:
            raise ProtocolError(f"the header is not JSON: {strict_error}") from strict_error
        try:
            fields = json_config.loads(bytes(header))
        except FormatError as error:
            raise ProtocolError(f"the header is not JSON: {error}") from error
    if type(fields) is not dict:
        raise ProtocolError("the header is not a JSON object")
    get = fields.get
    code, version, opaque, flag = get("code", 0), get("version", 0), get("opaque", 0), get("flag", 0)
    if not (
        type(code) is type(version) is type(opaque) is type(flag) is int
        and min(code, version, opaque, flag) >= _INT32_MIN
        and max(code, version, opaque, flag) <= _INT32_MAX
    ):
        raise _no_int32(fields)
    remark = get("remark")
    if remark is not None and type(remark) is not str:
        remark = _text(remark)
    language = get("language")
    command = RemotingCommand.__new__(RemotingCommand)
    command.code = code
    command.language = (
        _LANGUAGE_BY_NAME.get(language, _OTHER_LANGUAGE) if type(language) is str else _OTHER_LANGUAGE
    )
    command.version = version
    command.opaque = opaque
    command.flag = flag
    command.remark = remark
    command.ext_fields = _ext_fields(get("extFields"))
    command.body = None
    command.serialize_type = _JSON
    return command


def _no_int32(fields: dict[Any, Any]) -> ProtocolError:
    for name in ("code", "version", "opaque", "flag"):
        value = fields.get(name, 0)
        if type(value) is not int or not _INT32_MIN <= value <= _INT32_MAX:
            return ProtocolError(f"the header's {name} is {_shortened(value)}, not a 32-bit number")
    raise AssertionError(fields)


def _ext_fields(fields: Any) -> dict[str, str]:
    if fields is None:
        return {}
    if type(fields) is not dict:
        raise ProtocolError("extFields is not a JSON object")
    if _ONLY_TEXT.issuperset(map(type, fields.values())):
        return fields
    return {key: _text(value) for key, value in fields.items() if value is not None}


def _text(value: Any) -> str:
    """The text of a number or boolean where a string is expected, as fastjson reads it."""
    if type(value) is str:
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    raise ProtocolError(f"the header holds {_shortened(value)} where a text belongs")


def _shortened(value: Any) -> str:
    if isinstance(value, dict | list):
        return "an object" if isinstance(value, dict) else "a list"
    if isinstance(value, int) and abs(value) >= 10**30:
        return "a very long number"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def encode_json_header(command: RemotingCommand) -> bytes:
    fields: dict[str, Any] = {"code": command.code}
    if command.ext_fields:
        fields["extFields"] = command.ext_fields
    fields["flag"] = command.flag
    fields["language"] = _NAME_BY_LANGUAGE[command.language]
    fields["opaque"] = command.opaque
    if command.remark is not None:
        fields["remark"] = command.remark
    fields["serializeTypeCurrentRPC"] = "JSON"
    fields["version"] = command.version
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:  # a lone surrogate, from a file name perhaps
        if command.remark is not None:
            fields["remark"] = encodable(command.remark)
        if command.ext_fields:
            fields["extFields"] = {
                encodable(key): encodable(value) for key, value in command.ext_fields.items()
            }
        return orjson.dumps(fields)


# --- ROCKETMQ ----------------------------------------------------------------------------------------------


def decode_binary_header(header: Buffer) -> RemotingCommand:
    """The command of a ROCKETMQ header, without a body. ProtocolError."""
    data = bytes(header)
    if len(data) < _BINARY_HEAD.size + 4:
        raise ProtocolError(f"a ROCKETMQ header of {len(data)} bytes: it has at least 21")
    code, language, version, opaque, flag, remark_size = _BINARY_HEAD.unpack_from(data)
    position = _BINARY_HEAD.size + remark_size
    if remark_size < 0 or position + 4 > len(data):
        raise ProtocolError(f"a remark of {remark_size} bytes in a header of {len(data)}")
    try:
        remark = data[_BINARY_HEAD.size : position].decode() if remark_size else None
        ext_fields = _decode_fields(data, position)
    except UnicodeDecodeError as error:
        raise ProtocolError(f"the header is not UTF-8: {error.reason}") from error
    return RemotingCommand(
        code,
        language=_LANGUAGE_BY_CODE.get(language, LanguageCode.OTHER),
        version=version,
        opaque=opaque,
        flag=flag,
        remark=remark,
        ext_fields=ext_fields,
        serialize_type=SerializeType.ROCKETMQ,
    )


def _decode_fields(data: bytes, position: int) -> dict[str, str]:
    end = position + 4 + _LENGTH.unpack_from(data, position)[0]
    position += 4
    if not position <= end <= len(data):
        raise ProtocolError(f"extFields of {end - position} bytes in a header of {len(data)}")
    fields = {}
    while position < end:
        key_start = position + 2
        if key_start > end:
            raise ProtocolError("extFields end inside a key's length")
        key_end = key_start + _KEY_LENGTH.unpack_from(data, position)[0]
        value_start = key_end + 4
        if not key_start <= key_end or value_start > end:
            raise ProtocolError("extFields end inside a key")
        position = value_start + _LENGTH.unpack_from(data, key_end)[0]
        if not value_start <= position <= end:
            raise ProtocolError("extFields end inside a value")
        if key_start < key_end and value_start < position:
            fields[data[key_start:key_end].decode()] = data[value_start:position].decode()
    return fields


def encode_binary_header(command: RemotingCommand) -> bytes | None:
    """The ROCKETMQ header, None for a command that this form cannot express."""
    try:
        remark = (command.remark or "").encode("utf-8", "replace")
        fields = bytearray()
        for key, value in command.ext_fields.items():
            key_bytes, value_bytes = key.encode("utf-8", "replace"), value.encode("utf-8", "replace")
            fields += _KEY_LENGTH.pack(len(key_bytes)) + key_bytes
            fields += _LENGTH.pack(len(value_bytes)) + value_bytes
        head = _BINARY_HEAD.pack(
            command.code, command.language, command.version, command.opaque, command.flag, len(remark)
        )
    except struct.error:
        return None
    return b"".join((head, remark, _LENGTH.pack(len(fields)), fields))


# --- writing -----------------------------------------------------------------------------------------------


def encode_into(out: list[Buffer], command: RemotingCommand) -> int:
    """Appends the buffers of `command`'s frame to `out`; returns their size in bytes.

    A long body is not copied, so it must not change until it is sent. ProtocolError if the frame is too large.
    """
    header = None
    kind = SerializeType.JSON
    if (
        command.serialize_type == SerializeType.ROCKETMQ
        and (header := encode_binary_header(command)) is not None
    ):
        kind = SerializeType.ROCKETMQ
    if header is None:
        header = encode_json_header(command)
    body = command.body
    parts: Sequence[Buffer]
    if body is None:
        body_size, longest, parts = 0, 0, ()
    elif isinstance(body, bytes | bytearray | memoryview):
        body_size, longest, parts = len(body), len(body), (body,)
    else:
        sizes = list(map(len, body))
        body_size, longest, parts = sum(sizes), max(sizes, default=0), body
    size = 8 + len(header) + body_size
    header_size_max = FRAME_SIZE_MAX if command.flag & RESPONSE_FLAG else HEADER_SIZE_MAX
    if size > FRAME_SIZE_MAX or len(header) > header_size_max:
        raise ProtocolError(
            f"a frame of {size} bytes with a header of {len(header)}: "
            f"more than {FRAME_SIZE_MAX} and {header_size_max}"
        )
    prefix = _PREFIX.pack(size - 4, kind << 24 | len(header))
    if longest <= BODY_JOINED_MAX:
        out.append(b"".join((prefix, header, *parts)))
    else:
        out.append(prefix + header)
        out += parts
    return size


def encode_frame(command: RemotingCommand) -> bytes:
    """The frame of `command` in one piece. ProtocolError."""
    out: list[Buffer] = []
    encode_into(out, command)
    return b"".join(out)


def join_small(parts: list[Buffer]) -> list[Buffer]:
    """The same bytes in fewer buffers: joins runs of small ones, and leaves large ones alone."""
    if len(parts) == 1:
        return parts
    joined: list[Buffer] = []
    run: list[Buffer] = []
    for part in parts:
        if len(part) <= BODY_JOINED_MAX:
            run.append(part)
            continue
        if run:
            joined.append(b"".join(run))
            run = []
        joined.append(part)
    if run:
        joined.append(b"".join(run))
    return joined
