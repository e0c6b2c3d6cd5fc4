"""A real S3 server in this process (moto's), which counts what is asked of it."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import werkzeug.serving
from moto.server import ThreadedMotoServer

BUCKET = "lake"
KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1"}


@dataclass
class S3Server:
    endpoint: str
    requests: Counter[str] = field(default_factory=Counter)
    """By method."""
    is_away: bool = False
    """Then every request is answered with 503."""

    @property
    def options(self) -> dict[str, Any]:
        """Storage options for fsspec."""
        return {"endpoint_url": self.endpoint}

    @property
    def total(self) -> int:
        return sum(self.requests.values())


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """With an empty bucket BUCKET; keys for it are in the environment."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    server = S3Server(f"http://{host}:{port}")

    def counted(handler: Any, *_: Any) -> None:
        server.requests[handler.command] += 1

    run_wsgi = werkzeug.serving.WSGIRequestHandler.run_wsgi

    def answered(handler: Any) -> None:
        if server.is_away:
            handler.close_connection = True
            handler.send_error(503, "Slow Down")
        else:
            run_wsgi(handler)

    import fsspec
    import s3fs

    try:
        with (
            mock.patch.dict(os.environ, KEYS),
            mock.patch.object(werkzeug.serving.WSGIRequestHandler, "log_request", counted),
            mock.patch.object(werkzeug.serving.WSGIRequestHandler, "run_wsgi", answered),
        ):
            # a server before it may have had the port, and its bucket is remembered
            s3fs.S3FileSystem.clear_instance_cache()
            fsspec.filesystem("s3", **server.options).mkdir(BUCKET)
            yield server
    finally:
        moto.stop()
