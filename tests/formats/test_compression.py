"""Bodies packed and unpacked in every kind, cut, damaged, and larger than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqlake.errors import FormatError
from mqlake.formats.compression import COMPRESSION_NAMES, compress_body, decompress_body, decompress_pieces
from mqlake.message import MessageSysFlag

KINDS = st.sampled_from([0, *COMPRESSION_NAMES.values()]).map(lambda kind: kind | 1)


@given(st.binary(max_size=3000), KINDS)
def test_comes_back(body: bytes, flag: int) -> None:
    assert decompress_body(compress_body(body, flag), flag) == body


@given(st.binary(max_size=300), KINDS, st.data())
def test_cut_is_refused(body: bytes, flag: int, data: st.DataObject) -> None:
    packed = compress_body(body, flag)
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(FormatError):
        decompress_body(cut, flag)


@given(st.binary(max_size=300), KINDS)
def test_any_bytes_give_a_body_or_an_error(body: bytes, flag: int) -> None:
    try:
        decompress_body(body, flag)
    except FormatError as error:
        assert "unpack" in str(error)


@pytest.mark.parametrize("kind", COMPRESSION_NAMES.values(), ids=COMPRESSION_NAMES)
def test_a_small_body_does_not_claim_all_memory(kind: int) -> None:
    packed = compress_body(bytes(50 << 20), kind | 1)
    with pytest.raises(FormatError, match="more than 1000 bytes"):
        decompress_body(packed, kind | 1, 1000)


@pytest.mark.parametrize("kind", COMPRESSION_NAMES.values(), ids=COMPRESSION_NAMES)
def test_a_body_is_unpacked_only_as_far_as_it_is_read(kind: int) -> None:
    """Who shows the beginning of a body that unpacks to 50 MiB holds the beginning, even if the rest is damaged."""
    body = bytes(50 << 20)
    packed = compress_body(body, kind | 1)
    pieces = decompress_pieces(packed[: len(packed) // 2], kind | 1, 1000)
    first = next(pieces)
    assert 0 < len(first) <= 1000
    assert not any(first)
    with pytest.raises(FormatError, match="unpack"):
        for _ in pieces:
            pass
    assert sum(map(len, decompress_pieces(packed, kind | 1))) == len(body)


def test_a_body_that_is_not_compressed_is_itself() -> None:
    assert decompress_body(memoryview(b"plain"), MessageSysFlag.MULTI_TAGS_FLAG) == b"plain"


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(FormatError, match="type 5"):
        compress_body(b"x", 0x501)
    with pytest.raises(FormatError, match="type 5"):
        decompress_body(b"x", 0x501)
