from __future__ import annotations

from typing import Any

import pytest

from mqlake.client import Producer, PullConsumer, PushConsumer, SimpleConsumer
from mqlake.client.client_base import check_group
from mqlake.errors import ConfigError


def test_groups() -> None:
    check_group("a-Z_0|%")
    for bad in ("", "a b", "ü", "x" * 256):
        with pytest.raises(ConfigError, match="letters"):
            check_group(bad)


@pytest.mark.parametrize("kind", [Producer, PushConsumer, PullConsumer, SimpleConsumer])
def test_a_plain_with_says_what_to_use(kind: Any) -> None:
    more = [print] if kind is PushConsumer else []
    # without it Python 3.11 says "does not support the context manager protocol", and no more
    said = f"{kind.__name__} is for asyncio: use `async with`, or .*blocking"
    with pytest.raises(TypeError, match=said), kind("G", "127.0.0.1:1", *more):
        pass
