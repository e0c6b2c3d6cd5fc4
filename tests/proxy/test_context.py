"""Who calls, by metadata."""

from __future__ import annotations

import pytest

from mqlake.proxy.context import request_context
from mqlake.remoting.codes import LanguageCode


@pytest.mark.parametrize(
    ("word", "language"),
    [
        ("JAVA", LanguageCode.JAVA),
        ("GOLANG", LanguageCode.GO),
        ("Kotlin", LanguageCode.OTHER),
        ("", LanguageCode.OTHER),
    ],
)
def test_languages(word: str, language: LanguageCode):
    assert request_context({"x-mq-language": word}, "ipv4:1.2.3.4:5", None).language is language


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:10.0.0.1:5", "10.0.0.1:5"),
        ("ipv6:%5B::1%5D:5", "[::1]:5"),
        ("ipv6:[::1]:5", "[::1]:5"),
        ("unix:", "127.0.0.1:0"),
    ],
)
def test_addresses(peer: str, address: str):
    assert request_context({}, peer, None).remote_address == address


def test_deadlines():
    assert request_context({}, "", None).remaining_s() is None
    remaining = request_context({}, "", 5.0).remaining_s()
    assert remaining is not None and 0 < remaining <= 5
