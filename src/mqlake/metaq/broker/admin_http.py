"""AdminHttp: administration of a running broker over HTTP, in place of the original's JMX.

    GET  /stats  /stats/<item>                        the text of the stats command
    GET  /config                                      the configuration file, text
    POST /reload-config                               {"reloaded": true}
    GET  /partitions/closed                           {"orders": [0, 1]}
    POST /partitions/close?topic=T&start=0&end=3      puts and gets are then answered 403
    POST /partitions/open?topic=T
    POST /run-delete-policies                         {"gone": [paths]}
    GET  /transactions                                {"active": 2, "prepared": ["XID:..."]}
    POST /transactions/commit|rollback|complete?key=XID:...
    POST /checkpoint
    GET  / and the pages of dashboard.py              HTML for clients that accept it, else JSON

It listens on the loopback by default, because there are no passwords. Answers are JSON unless they are text; a
refusal is {"error": "..."} with status 400, 404 or 409. Posts that a page of another site makes a browser send are
refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import orjson

from mqlake.errors import MqlakeError
from mqlake.metaq.broker.dashboard import PAGES, Dashboard, as_html
from mqlake.metaq.wire.http import HTML, JSON, HttpAnswer, HttpRequest, HttpServer

if TYPE_CHECKING:
    from mqlake.metaq.broker.broker import MetaMorphosisBroker

Query = dict[str, str]
Action = Callable[[Query], Awaitable[Any]]


class AdminHttp:
    """`start`, then `port` is known; `stop` at the end."""

    def __init__(self, broker: MetaMorphosisBroker) -> None:
        self._broker = broker
        self._server = HttpServer(self._answer)
        self._dashboard = Dashboard(broker)
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

    @property
    def port(self) -> int:
        return self._server.port

    async def start(self, host: str, port: int) -> None:
        """ConfigError if it cannot listen there."""
        await self._server.start(host, port)

    async def stop(self) -> None:
        await self._server.stop()
        self._dashboard.close()

    async def _answer(self, request: HttpRequest) -> HttpAnswer:
        origin = urlsplit(request.headers.get("origin", "")).netloc
        if request.method == "POST" and origin not in ("", request.headers.get("host")):
            return HttpAnswer(403, f"posts from pages of {origin} are refused\n".encode())
        status, value = await self._ask(request.method, request.path, request.query)
        if "text/html" in request.headers.get("accept", ""):
            return HttpAnswer(status, as_html(request.path, value), HTML)
        if isinstance(value, str):
            return HttpAnswer(status, value.encode())
        return HttpAnswer(status, orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE), JSON)

    async def _ask(self, method: str, path: str, query: Query) -> tuple[int, Any]:
        path = path.rstrip("/") or "/"
        if path.startswith("/stats/"):
            path, query = "/stats", {"item": unquote(path.removeprefix("/stats/"))}
        action = self._actions.get((method, path))
        try:
            if action is not None:
                return 200, await action(query)
            if (page := await self._page(method, unquote(path), query)) is not None:
                return 200, page
            known = [other for other, name in self._actions if name == path]
            if known:
                return 405, {"error": f"{path} needs {known[0]}"}
            there = sorted({name for _, name in self._actions} | {f"/{name}" for name in PAGES})
            return 404, {"error": f"there is no {path}; the paths are {there}"}
        except KeyError as error:
            return 400, {"error": f"the parameter {error.args[0]} is missing"}
        except ValueError as error:
            return 400, {"error": str(error)}
        except (MqlakeError, OSError) as error:
            return 409, {"error": str(error)}

    async def _page(self, method: str, path: str, query: Query) -> Any:
        match method, path.split("/")[1:]:
            case "POST", ["topics", topic, "groups", group, "partitions", partition, "skip"]:
                return await self._dashboard.skip(topic, group, int(partition))
            case "GET", words:
                return await self._dashboard.page([word for word in words if word], query)
        return None

    # --- actions

    async def _stats(self, query: Query) -> str:
        return self._broker.stats.get_stats_info(query.get("item", ""))

    async def _config(self, _: Query) -> str:
        return self._broker.config.file_content().decode("utf-8", "replace")

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
