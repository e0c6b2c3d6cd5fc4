"""`each_server`: the tests of a module on each of the two servers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mqlake.broker.config import GrpcServerKind
from mqlake.proxy import server


@pytest.fixture(scope="module", params=list(GrpcServerKind), ids=lambda kind: kind.value)
def each_server(request: pytest.FixtureRequest) -> Iterator[GrpcServerKind]:
    """What a GrpcServer is that is told no kind."""
    before, server.default_kind = server.default_kind, request.param
    yield request.param
    server.default_kind = before
