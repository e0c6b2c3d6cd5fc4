"""Signatures, policies and files of access control, from bytes: nobody is let in whom nothing lets in.

python -m tests.fuzz.fuzz_access TARGET [libFuzzer's options and corpus]
"""

from __future__ import annotations

import contextlib
import json
import logging
import tempfile
from collections.abc import Callable, Iterator

import atheris

with atheris.instrument_imports(include=["mqlake"], enable_loader_override=False):
    from mqlake.auth import state as changes
    from mqlake.auth.access import AccessControl, AccessDeniedError
    from mqlake.auth.config import AuthConfig
    from mqlake.auth.model import Acl, IllegalError, User, UserType, acl_to_info, policies_from_info
    from mqlake.auth.plain_acl import read_file
    from mqlake.auth.requests import RULES, Context, UnclearRequestError
    from mqlake.auth.signature import parse_grpc_authorization, sign
    from mqlake.auth.state import State
    from mqlake.auth.storage import FILE_NAME, Storage, encode
    from mqlake.errors import ConfigError, FormatError, ProtocolError, ResponseError
    from mqlake.remoting.bodies.codec import load_json
    from mqlake.remoting.codec import decode_frame, encode_frame, frame_end
    from mqlake.remoting.codes import SerializeType
    from mqlake.remoting.command import RemotingCommand

from tests.fuzz.fuzz_frames import fuzz

USERS = {"root": User("root", "root-secret", UserType.SUPER), "alice": User("alice", "alice-secret")}
CONTEXT = Context("C", lambda offset: "T" if offset % 2 else None)


class _Connection:
    remote_address = "10.0.0.1:1"


def _access() -> AccessControl:
    settings = {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "accessFailuresMax": "2147483647",
    }
    access = AccessControl(AuthConfig().replaced(settings), Storage("/nowhere"), CONTEXT)
    access._set(State(USERS))
    return access


def _passes(access: AccessControl, command: RemotingCommand) -> bool:
    try:
        access.guard(_Connection(), command)  # type: ignore[arg-type]
    except AccessDeniedError:
        return False
    return True


def signed(data: bytes, kept: list[AccessControl] = []) -> None:  # noqa: B006 - made once
    """A frame that nobody signed, or somebody else, is refused, and so is what needs an acl, to a user without one."""
    if not kept:
        kept.append(_access())
    access = kept[0]
    try:
        stop = frame_end(memoryview(data), 0, len(data))
        if not stop:
            return
        command = decode_frame(memoryview(data), 0, stop)
    except ProtocolError:
        return
    assert not _passes(access, command), "unsigned"
    sign(command, "alice", "another-secret")
    assert not _passes(access, command), "badly signed"
    sign(command, "nobody", "alice-secret")
    assert not _passes(access, command), "a stranger"
    sign(command, "alice", "alice-secret")
    if _passes(access, command):
        rule = RULES[command.code]
        try:
            assert rule.needs(command, CONTEXT) == [], "without an acl"
        except UnclearRequestError as error:
            raise AssertionError("unclear") from error
    sign(command, "root", "root-secret")
    assert _passes(access, command), "a super user"
    command.ext_fields["changed"] = "x"
    assert not _passes(access, command), "changed"


def policies(data: bytes) -> None:
    """An acl that is what was said, or IllegalError; it changes nobody else's."""
    try:
        info = load_json(data)
        found = policies_from_info(info)
    except (FormatError, IllegalError):
        return
    assert policies_from_info(acl_to_info(Acl("alice", found))["policies"]) == found
    before = State(USERS)
    after = changes.update_acl(before, "User:alice", found)
    assert after.users == before.users and after.acls.keys() <= {"alice"}
    with contextlib.suppress(ResponseError):
        after = changes.delete_acl(after, "User:alice")
    assert after == before


def stored(data: bytes) -> None:
    """Users and acls, or ConfigError that names file and line."""
    try:
        lines = data.decode().split("\n")
        state = Storage("nowhere")._parse(lines)
    except UnicodeDecodeError:
        return
    except ConfigError as error:
        assert f"nowhere/{FILE_NAME}:" in str(error), error
        return
    assert Storage("nowhere")._parse(encode(state, None).decode().split("\n")) == state


def plain_acl(data: bytes) -> None:
    """Accounts, or ConfigError that names file and line."""
    with tempfile.NamedTemporaryFile(suffix=".yml") as file:
        file.write(data)
        file.flush()
        try:
            read_file(file.name)
        except ConfigError as error:
            assert str(error).startswith(f"{file.name}:"), error


def authorization(data: bytes) -> None:
    """A name and a signature, or None."""
    with contextlib.suppress(UnicodeDecodeError):
        found = parse_grpc_authorization(data.decode())
        assert found is None or (found[0] and found[1])


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (signed, policies, stored, plain_acl, authorization)
}


def seeds(name: str) -> Iterator[bytes]:
    if name == "signed":
        for code in RULES:
            for kind in SerializeType:
                fields = {
                    "topic": "T",
                    "b": "T",
                    "consumerGroup": "G",
                    "group": "G",
                    "offset": "1",
                    "msgId": "0" * 16,
                }
                body = b'{"consumerDataSet":[{"groupName":"G"}],"acks":[{"c":"G","t":"T"}]}'
                with contextlib.suppress(ProtocolError):
                    yield encode_frame(
                        RemotingCommand(code, ext_fields=fields, body=body, serialize_type=kind)
                    )
    elif name == "policies":
        entry = {"resource": "Topic:a*", "actions": ["Pub"], "sourceIps": ["10.0.0.0/8"], "decision": "Allow"}
        yield json.dumps([{"policyType": "Custom", "entries": [entry]}]).encode()
    elif name == "stored":
        yield encode(State(USERS), None)
    elif name == "plain_acl":
        yield b"globalWhiteRemoteAddresses: [10.0.0.*]\naccounts:\n- accessKey: RocketMQ\n  secretKey: 12345678\n"
    elif name == "authorization":
        yield b"MQv2-HMAC-SHA1 Credential=alice/x, SignedHeaders=x-mq-date-time, Signature=00ff"


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    fuzz(TARGETS, seeds)
