"""HPACK: the RFC's examples, and random headers through an encoder that is written here from the RFC."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqlake.proxy.http2.hpack import HEADERS_MAX, Decoder, Header, HpackError, encode, huffman_decode

FIRST = "828684418cf1e3c2e5f23a6ba0ab90f4ff"
SECOND = "828684be5886a8eb10649cbf"
THIRD = "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf"


def test_the_requests_of_the_rfc():
    """RFC 7541, C.4: three requests on one connection, with Huffman codes."""
    decoder = Decoder()
    begun = [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "www.example.com")]
    assert decoder.decode(bytes.fromhex(FIRST)) == begun
    assert decoder.decode(bytes.fromhex(SECOND)) == [*begun, ("cache-control", "no-cache")]
    assert decoder.decode(bytes.fromhex(THIRD)) == [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        (":authority", "www.example.com"),
        ("custom-key", "custom-value"),
    ]


def test_the_responses_of_the_rfc_evict_entries():
    """RFC 7541, C.5, literals in full and a table of 256 bytes, set by an update of its size."""
    decoder = Decoder()
    date, location = "Mon, 21 Oct 2013 20:13:21 GMT", "https://www.example.com"
    literals = [(8, "302"), (24, "private"), (33, date), (46, location)]
    block = b"\x3f\xe1\x01" + b"".join(bytes((0x40 | name, len(v))) + v.encode() for name, v in literals)
    first = [(":status", "302"), ("cache-control", "private"), ("date", date), ("location", location)]
    assert decoder.decode(block) == first
    assert decoder.decode(b"\x48\x03307\xc1\xc0\xbf") == [(":status", "307"), *first[1:]]
    with pytest.raises(HpackError, match="entry 66"):
        decoder.decode(b"\xc2")


text = st.text(st.characters(max_codepoint=255), max_size=300)
headers = st.lists(st.tuples(text, text), max_size=12)


class Encoder:
    """All forms of literals and indices, as `choices` say."""

    def __init__(self) -> None:
        self.table: list[Header] = []

    def encode(self, header: Header, choice: int) -> bytes:
        if header in self.table:
            return number(62 + self.table.index(header), 7, 0x80)
        value = string(header[1])
        name = string(header[0])
        if choice == 0:
            self.table.insert(0, header)
            while sum(len(n) + len(v) + 32 for n, v in self.table) > 4096:
                self.table.pop()
            return b"\x40" + name + value
        names = [known for known, _ in self.table]
        if choice == 1 and header[0] in names:
            return number(62 + names.index(header[0]), 4, 0) + value
        return bytes((0x10 if choice == 2 else 0,)) + name + value


def number(value: int, bits: int, mark: int) -> bytes:
    most = (1 << bits) - 1
    if value < most:
        return bytes((mark | value,))
    found, value = [mark | most], value - most
    while value > 127:
        found.append(value % 128 + 128)
        value //= 128
    return bytes((*found, value))


def string(value: str) -> bytes:
    data = value.encode("latin-1")
    return number(len(data), 7, 0) + data


@settings(max_examples=30, deadline=None)
@given(st.lists(headers, max_size=6), st.data())
def test_random_headers(requests: list[list[Header]], data: st.DataObject):
    encoder, decoder = Encoder(), Decoder()
    for request in requests:
        block = b"".join(encoder.encode(header, data.draw(st.integers(0, 3))) for header in request)
        assert decoder.decode(block) == request
        assert Decoder().decode(encode(request)) == request


def test_a_block_that_is_known_is_not_decoded_by_an_older_table():
    decoder = Decoder()
    decoder.decode(b"\x40\x01a\x01b")
    assert decoder.decode(b"\xbe") == [("a", "b")]
    assert decoder.decode(b"\xbe") == [("a", "b")]
    decoder.decode(b"\x40\x01c\x01d")
    assert decoder.decode(b"\xbe") == [("c", "d")]


@pytest.mark.parametrize(
    ("block", "says"),
    [
        (b"\x80", "index 0"),
        (b"\xbe", "entry 62"),
        (b"\x40\x01a\x05bc", "ends after"),
        (b"\x40", "ends within"),
        (b"\x3f\xff\xff\xff\xff\xff\x01", "32 bits"),
        (b"\x3f\xe2\x1f", "a table of 4097"),
        (b"\x82\x20", "after headers"),
        (b"\x00\x01a\x81\x00", "within a code"),
        (b"\x00\x01a\x84\xff\xff\xff\xff", "its end"),
    ],
)
def test_blocks_that_break_the_rules(block: bytes, says: str):
    with pytest.raises(HpackError, match=says):
        Decoder().decode(block)


def test_few_bytes_cannot_stand_for_many_headers():
    block = b"\x40\x01a" + string("b" * 3000) + b"\xbe" * (HEADERS_MAX // 3000 + 1)
    with pytest.raises(HpackError, match="headers of more than"):
        Decoder().decode(block)


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=60))
def test_bytes_that_mean_nothing(block: bytes):
    for decode in (Decoder().decode, huffman_decode):
        try:
            decode(block)
        except HpackError:
            continue
