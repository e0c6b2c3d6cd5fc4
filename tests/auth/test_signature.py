"""signature: RocketMQ's signatures, made and compared; any changed byte is noticed."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.auth import signature
from mqlake.remoting.command import RemotingCommand
from tests.auth.people import almost

FIELDS = st.dictionaries(st.text("abcZ", min_size=1, max_size=5), st.text(max_size=8), max_size=6)


def command(fields: dict[str, str], body: bytes = b"", version: int = 479) -> RemotingCommand:
    return RemotingCommand(310, ext_fields=dict(fields), body=body, version=version)


def test_the_signature_is_that_of_rocketmq_s_client() -> None:
    """Java 5.3.3's AclUtils.calSignature of these fields, worked out by hand: values in the order of the names."""
    signed = command({"b": "T", "a": "G"}, b"body")
    signature.sign(signed, "ak", "sk", "token")
    assert signature.signed_content(signed.ext_fields, b"body") == b"aktokenGTbody"
    assert signed.ext_fields["Signature"] == "rbwsVq0fLu4j4TwbUPXO83jkOFA=", signed.ext_fields["Signature"]


@given(FIELDS, st.binary(max_size=20))
def test_what_is_signed_is_accepted_and_nothing_else(fields: dict[str, str], body: bytes) -> None:
    signed = command(fields, body)
    signature.sign(signed, "ak", "sk")
    assert signature.is_signed_with(signed, "sk")
    assert not signature.is_signed_with(signed, "other")
    signed.body = body + b"x"
    assert not signature.is_signed_with(signed, "sk")
    signed.body = body
    signed.ext_fields["added"] = "x"
    assert not signature.is_signed_with(signed, "sk")


@given(st.text(max_size=80), st.binary(max_size=200))
def test_signatures_are_those_of_hmac(secret: str, content: bytes) -> None:
    expected = base64.b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()
    assert signature.signature_of(secret, content) == expected


@pytest.mark.parametrize(("version", "accepted"), [(399, True), (400, False), (479, False)])
def test_old_clients_add_a_field_after_they_have_signed(version: int, accepted: bool) -> None:
    signed = command({"topic": "T"}, version=version)
    signature.sign(signed, "ak", "sk")
    signed.ext_fields["_UNIQUE_KEY_QUERY"] = "true"
    assert signature.is_signed_with(signed, "sk") is accepted
    # whoever signs now signs the field as well
    assert signature.signed_content(signed.ext_fields, b"") == b"aktrueT"


@pytest.mark.parametrize("given_signature", [None, "", "äö", "AAAA", "=" * 28])
def test_a_bad_signature_is_only_a_bad_signature(given_signature: str | None) -> None:
    unsigned = command({"AccessKey": "ak"})
    if given_signature is not None:
        unsigned.ext_fields["Signature"] = given_signature
    assert not signature.is_signed_with(unsigned, "sk")


def test_only_the_whole_signature_authenticates() -> None:
    """Compared by its beginning, one right character would be enough."""
    signed = command({"AccessKey": "ak", "topic": "T"}, b"body")
    signature.sign(signed, "ak", "sk")
    right = signed.ext_fields["Signature"]
    for wrong in (*almost(right), right.lower(), right.replace("=", "%3D")):
        signed.ext_fields["Signature"] = wrong
        assert not signature.is_signed_with(signed, "sk"), wrong
    signed.ext_fields["Signature"] = right
    assert signature.is_signed_with(signed, "sk")


def test_only_the_whole_signature_of_grpc_authenticates() -> None:
    right = hmac.new(b"sk", b"20260101T000000Z", hashlib.sha1).digest()
    for wrong in (
        *(right[:end] for end in range(len(right))),
        *(right + more for more in (b"\0", b"0", right)),
        *(right[:at] + bytes([right[at] ^ 1]) + right[at + 1 :] for at in range(len(right))),
    ):
        assert not signature.is_grpc_signature("sk", "20260101T000000Z", wrong), wrong
    assert signature.is_grpc_signature("sk", "20260101T000000Z", right)


def test_the_authorization_of_grpc() -> None:
    digest = hmac.new(b"sk", b"20260101T000000Z", hashlib.sha1).hexdigest()
    for text in (digest, digest.upper()):
        header = (
            f"MQv2-HMAC-SHA1 Credential=alice/region/Rocketmq, SignedHeaders=x-mq-date-time, Signature={text}"
        )
        parsed = signature.parse_grpc_authorization(header)
        assert parsed is not None and parsed[0] == "alice"
        assert signature.is_grpc_signature("sk", "20260101T000000Z", parsed[1])
        assert not signature.is_grpc_signature("sk", "20260101T000001Z", parsed[1])
        assert not signature.is_grpc_signature("other", "20260101T000000Z", parsed[1])


@pytest.mark.parametrize(
    "fields",
    [
        "Credential=alice",
        "Credential=alice, Signature=",
        "Signature=00ff",
        "Credential=, Signature=00ff",
        "Credential=/region/service, Signature=00ff",
        "Credential=alice, Signature=0",
        "Credential=alice, Signature=xy",
        "Credential=alice, Signature=éé",
    ],
)
def test_an_authorization_without_a_name_or_a_signature_is_none(fields: str) -> None:
    assert signature.parse_grpc_authorization(f"MQv2-HMAC-SHA1 {fields}") is None


@given(st.text(max_size=80))
def test_another_authorization_is_none(header: str) -> None:
    parsed = signature.parse_grpc_authorization(header)
    assert parsed is None or ("credential=" in header.lower() and "signature=" in header.lower())
