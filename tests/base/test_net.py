from __future__ import annotations

import errno
import socket

import pytest

from mqlake.base.net import format_address, is_every_address, local_address, parse_address, reason_of
from mqlake.errors import RemotingConnectError


@pytest.mark.parametrize(
    ("address", "text"),
    [(("10.0.0.1", 80), "10.0.0.1:80"), (("::1", 80, 0, 0), "[::1]:80"), (("broker-a", 0), "broker-a:0")],
)
def test_addresses_as_text_and_back(address: tuple[object, ...], text: str) -> None:
    assert format_address(address) == text
    assert parse_address(f" {text} ") == address[:2]


def test_what_a_socket_without_a_peer_says() -> None:
    assert format_address(None) == format_address("") == ""
    assert format_address("/run/socket") == "/run/socket"
    assert format_address(("alone",)) == "('alone',)"


def test_the_last_port() -> None:
    assert parse_address("host:65535") == ("host", 65535)


@pytest.mark.parametrize("text", ["", "host", ":80", "host:", "host:x", "host:65536", "host:-1", "host:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(RemotingConnectError, match="host:port is needed"):
        parse_address(text)


def test_a_url_is_no_address() -> None:
    """The host `http://127.0.0.1` was looked up, and `Name or service not known` said nothing of what was wrong."""
    with pytest.raises(RemotingConnectError, match="without http://"):
        parse_address("http://127.0.0.1:9876")


def test_every_address() -> None:
    assert all(map(is_every_address, ("", "0.0.0.0", "::")))
    assert not any(map(is_every_address, ("127.0.0.1", "::1", "host")))


def test_the_address_of_this_machine_can_be_bound() -> None:
    host = local_address()
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((host, 0))
        assert server.getsockname()[0] == host


def test_without_a_route_it_is_the_loopback_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("network is unreachable")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert local_address() == "127.0.0.1"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            OSError(errno.EADDRINUSE, "error while attempting to bind on ('::1', 80)"),
            "Address already in use",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError(10061, "actively refused"), "actively refused"),
        (ConnectionResetError(), "ConnectionResetError"),
        (RuntimeError("closed"), "closed"),
    ],
)
def test_a_reason_has_words_and_no_address(error: Exception, text: str) -> None:
    assert reason_of(error) == text
