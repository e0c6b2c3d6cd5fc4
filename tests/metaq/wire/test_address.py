from __future__ import annotations

from mqlake.base.net import local_address
from mqlake.metaq.wire.address import broker_string


def test_what_a_broker_is_called() -> None:
    assert broker_string("10.0.0.1", 8123) == "meta://10.0.0.1:8123"
    assert broker_string("::1", 8123) == "meta://[::1]:8123"
    assert broker_string("", 8123) == f"meta://{local_address()}:8123"
