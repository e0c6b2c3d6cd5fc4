"""A server of MetaQ writers for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.writer_server import WriterServer


@pytest.fixture(scope="session")
def metaq_writers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WriterServer]:
    server = WriterServer(
        "tests.metaq.crash.server", str(tmp_path_factory.mktemp("metaq-writers") / "stderr")
    )
    yield server
    server.close()
