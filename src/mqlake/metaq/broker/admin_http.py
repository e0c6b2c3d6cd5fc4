"""AdminHttp: what operators ask a running broker, over HTTP; the original has JMX for it.

    GET  /stats  /stats/<item>                        as the stats command tells it, text
    GET  /config                                      the configuration file, text
    POST /reload-config                               {"reloaded": true}
    GET  /partitions/closed                           {"orders": [0, 1]}
    POST /partitions/close?topic=T&start=0&end=3      puts and gets are answered 403 from now on
    POST /partitions/open?topic=T
    POST /run-delete-policies                         {"gone": [paths]}
    GET  /transactions                                {"active": 2, "prepared": ["XID:..."]}
    POST /transactions/commit|rollback|complete?key=XID:...
    POST /checkpoint

It listens on the loopback unless told otherwise: there are no passwords. Answers are JSON unless they are text;
a refusal is {"error": "..."} with status 400, 404 or 409.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from mqlake.errors import ConfigError, MqlakeError

if TYPE_CHECKING:
    from mqlake.metaq.broker.broker import MetaMorphosisBroker

logger = logging.getLogger(__name__)

HEAD_MAX = 16 * 1024
READ_S = 10.0
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict"}

Query = dict[str, str]
Action = Callable[[Query], Awaitable[Any]]


class AdminHttp:
    """`start`, look at `port`, `stop`."""

    def __init__(self, broker: MetaMorphosisBroker) -> None:
        self._broker = broker
        self._server: asyncio.Server | None = None
        self.port = 0
        self._actions: dict[tuple[str, str], Action] = {
            ("GET", "/stats"): self._stats,
            ("GET", "/config"): self._config,
            ("POST", "/reload-config"): self._reload,
            ("GET", "/partitions/closed"): self._closed,
            ("POST", "/partitions/close"): self._close,
            ("POST", "/partitions/open"): self._open,
            ("POST", "/run-delete-policies"): self._delete,
            ("GET", "/transactions"): self._transactions,
            ("POST", "/checkpoint"): self._checkpoint,
            **{
                ("POST", f"/transactions/{how}"): self._end(how) for how in ("commit", "rollback", "complete")
            },
        }

    async def start(self, host: str, port: int) -> None:
        """ConfigError when it cannot listen there."""
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=HEAD_MAX)
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    # --- HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(READ_S):
                head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode("ascii").split(" ")
            status, body = await self._answer(method, target)
        except (asyncio.LimitOverrunError, UnicodeDecodeError, ValueError):
            status, body = 400, {"error": "not an HTTP request"}
        except (asyncio.IncompleteReadError, TimeoutError, OSError):
            writer.close()
            return
        is_text = isinstance(body, str)
        raw = body.encode() if is_text else orjson.dumps(body, option=orjson.OPT_APPEND_NEWLINE)
        kind = "text/plain; charset=utf-8" if is_text else "application/json"
        writer.write(
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(raw)}\r\nConnection: close\r\n\r\n".encode()
            + raw
        )
        try:
            await writer.drain()
        except OSError:
            pass
        writer.close()

    async def _answer(self, method: str, target: str) -> tuple[int, Any]:
        parts = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        path = parts.path.rstrip("/") or "/"
        if path.startswith("/stats/"):
            path, query["item"] = "/stats", unquote(path.removeprefix("/stats/"))
        action = self._actions.get((method, path))
        if action is None:
            known = [other for other, name in self._actions if name == path]
            if known:
                return 405, {"error": f"{path} wants {known[0]}"}
            return 404, {
                "error": f"there is no {path}; there are {sorted({name for _, name in self._actions})}"
            }
        try:
            return 200, await action(query)
        except KeyError as error:
            return 400, {"error": f"the parameter {error.args[0]} is missing"}
        except ValueError as error:
            return 400, {"error": str(error)}
        except (MqlakeError, OSError) as error:
            return 409, {"error": str(error)}

    # --- what it does

    async def _stats(self, query: Query) -> str:
        return self._broker.stats.get_stats_info(query.get("item", ""))

    async def _config(self, _: Query) -> str:
        if not self._broker.config.path:
            raise ConfigError("the broker runs without a configuration file")
        with open(self._broker.config.path, "rb") as file:
            return file.read().decode("utf-8", "replace")

    async def _reload(self, _: Query) -> Any:
        return {"reloaded": self._broker.config.reload()}

    async def _closed(self, _: Query) -> Any:
        return self._broker.config.closed_partitions()

    async def _close(self, query: Query) -> Any:
        self._broker.config.close_partitions(query["topic"], int(query["start"]), int(query["end"]))
        return self._broker.config.closed_partitions()

    async def _open(self, query: Query) -> Any:
        self._broker.config.open_partitions(query["topic"])
        return self._broker.config.closed_partitions()

    async def _delete(self, _: Query) -> Any:
        return {"gone": await asyncio.to_thread(self._broker.manager.run_delete_policies)}

    async def _transactions(self, _: Query) -> Any:
        return {
            "active": self._broker.transaction_processor.active_transaction_count,
            "prepared": [str(xid) for xid in self._broker.transaction_processor.prepared_transactions()],
        }

    def _end(self, how: str) -> Action:
        async def end(query: Query) -> Any:
            processor = self._broker.transaction_processor
            actions = {
                "commit": processor.commit_heuristically,
                "rollback": processor.rollback_heuristically,
                "complete": processor.complete_heuristically,
            }
            await actions[how](query["key"])
            return {"key": query["key"], "done": how}

        return end

    async def _checkpoint(self, _: Query) -> Any:
        self._broker.transaction_processor.make_checkpoint()
        return {"done": "checkpoint"}
