"""The console in a thread of its own, and requests to it as a browser makes them."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlencode

from mqlake.console.app import ConsoleConfig
from mqlake.console.security import COOKIE
from mqlake.console.server import ConsoleServer
from tests.waiting import PATIENCE_S

T = TypeVar("T")


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Browser:
    """Keeps its cookie, and finds the token of a form in the page."""

    address: str
    cookies: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: str | None = None, **headers: str) -> Answer:
        host, port = self.address.rsplit(":", 1)
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENCE_S)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            sent["Content-Type"] = "application/x-www-form-urlencoded"
        connection.request(method, path, body, sent)
        answer = connection.getresponse()
        found = Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        connection.close()
        if match := re.match(rf"{COOKIE}=([^;]*)", found.headers.get("set-cookie", "")):
            self.cookies[COOKIE] = match[1]
        return found

    def get(self, path: str, **query: object) -> Answer:
        return self.ask("GET", path + ("?" + urlencode(query) if query else ""))

    def data(self, path: str, **query: object) -> Any:
        """The page as JSON."""
        answer = self.get(path, format="json", **query)
        assert answer.status == 200, answer.text
        return answer.json

    def post(self, path: str, **fields: object) -> Answer:
        token = self.get("/session").json["csrf"]
        return self.ask("POST", path, urlencode({"csrf": token, **fields}))


class Served:
    def __init__(self, config: ConsoleConfig) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.server = ConsoleServer(config)
        self.run(self.server.start("127.0.0.1", 0))

    @property
    def url(self) -> str:
        return f"http://{self.server.address}"

    def browser(self) -> Browser:
        return Browser(self.server.address)

    def run(self, what: Coroutine[Any, Any, T]) -> T:
        """On the console's own loop."""
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(PATIENCE_S)

    def close(self) -> None:
        self.run(self.server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@contextmanager
def serving(config: ConsoleConfig) -> Iterator[Served]:
    served = Served(config)
    try:
        yield served
    finally:
        served.close()
