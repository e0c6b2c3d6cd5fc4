"""What is wrong with a stream's place is said before Spark starts it."""

from __future__ import annotations

import pytest

from mqlake.errors import ConfigError, MqlakeError, NoNameServerError
from mqlake.spark.jobs.streams import broker_options
from tests.interop.brokers import free_ports


@pytest.mark.parametrize(
    ("namesrv", "topics", "kind", "said"),
    [
        ("127.0.0.1:9876", [], ConfigError, "topic"),
        ("", ["T"], ConfigError, "namesrvAddr"),
        ("nohost", ["T"], ConfigError, "nohost"),
        ("127.0.0.1:{}", ["T"], NoNameServerError, "cannot connect"),
    ],
)
def test_brokers_that_cannot_be_asked(
    namesrv: str, topics: list[str], kind: type[MqlakeError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        broker_options(namesrv.format(free_ports(1)), topics)
