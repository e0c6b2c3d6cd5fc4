from __future__ import annotations

import pytest

from mqlake.errors import FormatError
from mqlake.metaq.formats.checkpoint import (
    JournalLocation,
    checkpoint_name,
    checkpoint_number,
    decode_checkpoint,
    encode_checkpoint,
)


def test_bytes_as_the_original_writes_them() -> None:
    assert encode_checkpoint(JournalLocation(3, 4711)) == b'{"number":3,"offset":4711}'
    assert decode_checkpoint(b'{"offset":4711,"number":3}') == JournalLocation(3, 4711)
    assert decode_checkpoint(b"") is None


def test_names() -> None:
    assert checkpoint_number(checkpoint_name(12)) == 12
    for name in ("checkpoint.", "checkpoint.x", "redo.1", "checkpoint.1.tmp"):
        assert checkpoint_number(name) is None


@pytest.mark.parametrize("data", [b"{", b"[]", b"{}", b'{"number":1}', b'{"number":-1,"offset":0}', b'"x"'])
def test_what_is_none(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_checkpoint(data)
