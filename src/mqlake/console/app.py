"""The console as an ASGI application: routes, login, forms, errors."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

import orjson
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mqlake.client.config import ClientConfig
from mqlake.console.access import Gate, close_cluster, is_refusal, lacks_permission
from mqlake.console.ask import FORM_MAX, TURNS, Ask, Cluster, Context, NotAllowedError, Page
from mqlake.console.bodies import Bodies
from mqlake.console.brake import Brake
from mqlake.console.excerpts import excerpt
from mqlake.console.jobs import Jobs
from mqlake.console.openapi import document
from mqlake.console.pages import PAGES
from mqlake.console.queries.messages import at_place
from mqlake.console.queries.tail import events, export
from mqlake.console.sampler import INTERVAL_S
from mqlake.console.security import COOKIE, HEADERS, Sessions, is_own_host, is_same_origin
from mqlake.console.store_files import StoreFiles
from mqlake.console.templates import DIRECTORY, Given, render, warm_up
from mqlake.errors import (
    ConfigError,
    MessageError,
    MqlakeError,
    RemotingConnectError,
    RemotingTimeoutError,
    ResponseError,
    UnknownKeyError,
)
from mqlake.formats.compression import decompress_pieces

DRAINED_MAX = 16 << 20
"""Bytes of a form that is too large that are read all the same: who sends them then sees why it is refused."""
FORM_S = 60.0
"""A form has arrived by then."""

TAILS_MAX = 16

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    where: ClientConfig | None = None
    """The cluster; None: directories only."""
    stores: Mapping[str, StoreFiles] = field(default_factory=dict)
    allow_changes: bool = False
    names: tuple[str, ...] = ()
    """Host names under which browsers reach the console, besides localhost and addresses."""
    bodies: Bodies = field(default_factory=Bodies)
    sample_interval_s: float = INTERVAL_S
    """Between two rounds of samples of rates and lag."""


class Console:
    """`app` serves it; its lifespan closes what it opened."""

    def __init__(self, config: ConsoleConfig) -> None:
        self.config = config
        self.sessions = Sessions()
        self.gate = Gate(config.where, config.sample_interval_s) if config.where is not None else None
        self.jobs = Jobs()
        self._brake = Brake()
        self._turns = asyncio.Semaphore(TURNS)
        self.closing = asyncio.Event()
        """Set when the console stops: streams end."""
        self._tails = 0
        routes = [
            Route(
                page.path,
                functools.partial(self._page, page),
                methods=["GET", "POST"] if page.action else ["GET"],
            )
            for page in PAGES
        ]
        self.app = Starlette(
            routes=[
                Route("/login", self._login, methods=["GET", "POST"]),
                Route("/logout", self._logout, methods=["POST"]),
                Route("/session", self._session),
                Route("/topics/{topic}/tail/events", self._tail),
                Route("/topics/{topic}/export", self._export),
                Route("/topics/{topic}/message/body", self._body),
                Route("/openapi.json", self._openapi),
                Route("/help", self._help),
                Mount("/static", StaticFiles(directory=DIRECTORY / "static")),
                *routes,
            ],
            exception_handlers={404: self._not_found, Exception: self._failed},
            lifespan=self._lifespan,
        )
        self.app.add_middleware(_Headers, names=config.names)

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        warm = asyncio.create_task(asyncio.to_thread(warm_up))
        yield
        await self.close()
        await warm

    async def close(self) -> None:
        await self.jobs.close()
        for cluster in self.sessions.end_all():
            await close_cluster(cluster)
        if self.gate is not None:
            await self.gate.close()
        for store in self.config.stores.values():
            await store.close()

    # ------------------------------------------------------------------ pages

    async def _page(self, page: Page, request: Request) -> Response:
        try:
            cluster = await self._cluster(request)
            if cluster is None and self.gate is not None:
                return self._to_login(request)
            if cluster is not None and page.of == "store" and not cluster.is_super:
                raise NotAllowedError("the files hold what all users wrote: only super users may see them")
            values = {**dict(request.query_params), **request.path_params}
            context = self._context(cluster)
            is_post = request.method == "POST"
            if is_post:
                values |= await self._form(request, page.form_max, harmless=page.harmless)
            data = await page.answer(Ask(values, context), is_post=is_post)
        except (MqlakeError, OSError) as error:
            return await self._form_again(request, page, error) or self._problem(request, error)
        return self._answer(request, page.template, page.title, data, cluster)

    async def _form_again(
        self, request: Request, page: Page, error: MqlakeError | OSError
    ) -> Response | None:
        """The page of a form that failed, with why, and with what was typed. None if it cannot be shown."""
        fields = getattr(request.state, "fields", None)
        if fields is None or wants_json(request):
            return None
        cluster = await self._cluster(request)
        values = {**dict(request.query_params), **request.path_params}
        try:
            data = await page.answer(Ask(values, self._context(cluster)))
        except (MqlakeError, OSError):
            return None
        status, text = explain(error)
        kept = {name: value for name, value in fields.items() if name not in ("secret", "confirm")}
        return self._answer(request, page.template, page.title, data, cluster, status, text, kept)

    def _answer(
        self,
        request: Request,
        template: str,
        title: str,
        data: dict[str, Any],
        cluster: Cluster | None = None,
        status: int = 200,
        problem: str = "",
        given: Mapping[str, str] | None = None,
    ) -> Response:
        """`problem`: why a form failed, and `given` what was typed into it."""
        if wants_json(request):
            return json_response(data, status)
        session_id = request.cookies.get(COOKIE) or self.sessions.new_id()
        html = render(
            template,
            data,
            title=title,
            subject=next((str(part) for part in request.path_params.values()), ""),
            problem=problem,
            given=Given(given or {}),
            path=request.url.path,
            query=dict(request.query_params),
            csrf=self.sessions.csrf_token(session_id),
            user=cluster.user if cluster is not None else "",
            allow_changes=self.config.allow_changes,
            has_cluster=self.gate is not None,
            stores=list(self.config.stores),
            pages={page.path for page in PAGES},
        )
        response = HTMLResponse(html, status)
        if COOKIE not in request.cookies:
            self._set_cookie(request, response, session_id)
        return response

    def _context(self, cluster: Cluster | None) -> Context:
        config = self.config
        return Context(config.stores, cluster, self.jobs, config.allow_changes, config.bodies, self._turns)

    async def _cluster(self, request: Request) -> Cluster | None:
        """The session's cluster, or the one that all users share. None if there is none, or if users have to log in."""
        if self.gate is None:
            return None
        known = self.sessions.cluster(request.cookies.get(COOKIE, ""))
        if known is not None:
            return known
        if await self.gate.needs_login():
            return None
        everybody = self.gate.everybody()
        everybody.sampler.start()
        return everybody

    # ------------------------------------------------------------------ forms

    async def _form(
        self, request: Request, size_max: int = FORM_MAX, *, harmless: bool = False
    ) -> dict[str, str]:
        """The fields of a form. NotAllowedError for a request that another site may have made."""
        try:
            async with asyncio.timeout(FORM_S):
                body = await _read(request, size_max)
            fields = dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=1000))
        except TimeoutError:
            raise ConfigError(f"the form did not arrive within {FORM_S:g} s") from None
        except ValueError as error:
            raise ConfigError(f"this is no form: {error}") from None
        token = request.headers.get("x-csrf-token") or fields.pop("csrf", "")
        own = is_same_origin(request.headers.get("origin"), request.headers.get("host", ""))
        if not own or not self.sessions.is_csrf_token(request.cookies.get(COOKIE, ""), token):
            raise NotAllowedError("this form is not from here, or is too old: load the page again")
        if not harmless and not self.config.allow_changes:
            raise NotAllowedError("this console is read-only; `--allow-changes` lets it change things")
        request.state.fields = fields
        return fields

    def _set_cookie(self, request: Request, response: Response, session_id: str) -> None:
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, session_id, httponly=True, samesite="strict", secure=secure, path="/")

    def _to_login(self, request: Request) -> Response:
        if wants_json(request):
            return json_response(
                {"error": "log in first: this cluster has access control"}, HTTPStatus.UNAUTHORIZED
            )
        here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login?" + urlencode({"next": here}), HTTPStatus.SEE_OTHER)

    async def _login(self, request: Request) -> Response:
        target = _local_path(request.query_params.get("next", "/"))
        if self.gate is None:
            return RedirectResponse("/", HTTPStatus.SEE_OTHER)
        if request.method == "GET":
            return self._answer(request, "login.html", "Log in", {"next": target, "error": ""})
        try:
            fields = await self._form(request, harmless=True)
            cluster = await self._logged_in(fields.get("user", "").strip(), fields.get("secret", ""), request)
        except (MqlakeError, OSError) as error:
            status, text = explain(error)
            if is_refusal(error):
                status, text = HTTPStatus.FORBIDDEN, "user or secret is wrong"
            answer = self._answer(
                request,
                "login.html",
                "Log in",
                {"next": target, "error": text},
                status=status,
                given={"user": getattr(request.state, "fields", {}).get("user", "")},
            )
            if isinstance(error, TooManyError):
                answer.headers["Retry-After"] = str(error.wait_s)
            return answer
        session_id, ended = self.sessions.log_in(cluster)
        for old in ended:
            await close_cluster(old)
        response = RedirectResponse(target, HTTPStatus.SEE_OTHER)
        self._set_cookie(request, response, session_id)
        return response

    async def _logged_in(self, user: str, secret: str, request: Request) -> Cluster:
        """The cluster as that user may see it. ResponseError if user or secret is wrong, TooManyError."""
        assert self.gate is not None
        address = request.client.host if request.client is not None else ""
        wait_s = self._brake.begin(user, address)
        if wait_s:
            raise TooManyError(wait_s)
        try:
            cluster = await self.gate.log_in(user, secret)
        except BaseException as error:
            if not is_refusal(error):
                self._brake.undone(user, address)
            raise
        self._brake.passed(user, address)
        return cluster

    async def _logout(self, request: Request) -> Response:
        try:
            await self._form(request, harmless=True)
        except MqlakeError as error:
            return self._problem(request, error)
        cluster = self.sessions.log_out(request.cookies.get(COOKIE, ""))
        if cluster is not None:
            await close_cluster(cluster)
        response = RedirectResponse("/", HTTPStatus.SEE_OTHER)
        response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
        return response

    # ------------------------------------------------------------------ streams

    async def _stream_ask(self, request: Request) -> Ask:
        cluster = await self._cluster(request)
        if cluster is None and self.gate is not None:
            raise NotAllowedError("log in first: this cluster has access control")
        values = {**dict(request.query_params), **request.path_params}
        return Ask(values, self._context(cluster))

    async def _tail(self, request: Request) -> Response:
        """Server-sent events, until the browser or the console goes."""
        try:
            ask = await self._stream_ask(request)
            await ask.admin.examine_topic_route_info(ask.need("topic"))
        except (MqlakeError, OSError) as error:
            return self._problem(request, error)
        if self._tails >= TAILS_MAX:
            return self._error(
                request, HTTPStatus.SERVICE_UNAVAILABLE, f"{TAILS_MAX} live views are open already"
            )
        return StreamingResponse(self._until_closed(events(ask)), media_type="text/event-stream")

    async def _until_closed(self, parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        self._tails += 1
        closed = asyncio.create_task(self.closing.wait())
        part: asyncio.Future[bytes] | None = None
        try:
            while True:
                part = asyncio.ensure_future(anext(parts))
                await asyncio.wait((part, closed), return_when=asyncio.FIRST_COMPLETED)
                if not part.done():
                    return
                yield part.result()
        finally:
            self._tails -= 1
            ending = [each for each in (part, closed) if each is not None]
            for each in ending:
                each.cancel()
            await asyncio.gather(*ending, return_exceptions=True)

    async def _export(self, request: Request) -> Response:
        """JSON lines, as a file to keep."""
        try:
            ask = await self._stream_ask(request)
            lines = await export(ask)
        except (MqlakeError, OSError) as error:
            return self._problem(request, error)
        name = quote(ask.text("topic"), safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}.jsonl"}
        return StreamingResponse(lines, media_type="application/jsonl", headers=headers)

    async def _body(self, request: Request) -> Response:
        """A body as its producer had it, as a file to keep, unpacked while it is sent. What is no stream: as stored."""
        try:
            ask = await self._stream_ask(request)
            found = await at_place(ask)
        except (MqlakeError, OSError) as error:
            return self._problem(request, error)
        name = quote(found.uniq_key or found.msg_id, safe="")
        headers = {"Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
        is_readable = not excerpt(found.body, found.sys_flag, 0).note
        pieces = decompress_pieces(found.body, found.sys_flag) if is_readable else iter((found.body,))
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)

    # ------------------------------------------------------------------ the rest

    async def _session(self, request: Request) -> Response:
        """For scripts: the token that their POSTs have to bring, with a cookie."""
        session_id = request.cookies.get(COOKIE) or self.sessions.new_id()
        cluster = self.sessions.cluster(session_id)
        data = {"csrf": self.sessions.csrf_token(session_id), "user": cluster.user if cluster else None}
        response = json_response(data | {"allowChanges": self.config.allow_changes})
        self._set_cookie(request, response, session_id)
        return response

    async def _openapi(self, _request: Request) -> Response:
        return json_response(document(PAGES))

    async def _help(self, request: Request) -> Response:
        return self._answer(request, "help.html", "Help", {"paths": [page.path for page in PAGES]})

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return self._error(request, HTTPStatus.NOT_FOUND, f"there is no page {request.url.path}")

    async def _failed(self, request: Request, error: Exception) -> Response:
        return self._error(
            request, HTTPStatus.INTERNAL_SERVER_ERROR, f"this is a fault of the console: {error!r}"
        )

    def _problem(self, request: Request, error: MqlakeError | OSError) -> Response:
        status, text = explain(error)
        return self._error(request, status, text)

    def _error(self, request: Request, status: int, text: str) -> Response:
        data = {"error": text, "status": status}
        return self._answer(request, "error.html", HTTPStatus(status).phrase, data, status=status)


class TooLargeError(ConfigError):
    """A form with more bytes than its page takes."""


class TooManyError(MqlakeError):
    """Logins failed so often that the next has to wait `wait_s` seconds."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = math.ceil(wait_s)
        super().__init__(f"too many logins failed: try again in {self.wait_s} s")


async def _read(request: Request, size_max: int) -> bytes:
    """The body of a request. TooLargeError."""
    body, received = bytearray(), 0
    announced = request.headers.get("content-length", "")
    if not (announced.isdecimal() and int(announced) > size_max + DRAINED_MAX):
        async for part in request.stream():
            received += len(part)
            if received > size_max + DRAINED_MAX:
                break
            if received <= size_max:
                body += part
        if received <= size_max:
            return bytes(body)
    raise TooLargeError(f"the form is larger than {size_max} bytes")


def explain(error: MqlakeError | OSError) -> tuple[int, str]:
    """The status of HTTP and the sentence for an error."""
    text = str(error)
    if isinstance(error, TooLargeError):
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, text
    if isinstance(error, TooManyError):
        return HTTPStatus.TOO_MANY_REQUESTS, text
    if isinstance(error, NotAllowedError) or lacks_permission(error):
        return HTTPStatus.FORBIDDEN, text
    if isinstance(error, UnknownKeyError):
        return HTTPStatus.NOT_FOUND, text
    if isinstance(error, ConfigError | MessageError):
        return HTTPStatus.BAD_REQUEST, text
    if is_refusal(error):
        return HTTPStatus.FORBIDDEN, text
    if isinstance(error, RemotingConnectError | RemotingTimeoutError):
        return HTTPStatus.BAD_GATEWAY, f"{text}; is it running?"
    return HTTPStatus.BAD_GATEWAY if isinstance(
        error, ResponseError
    ) else HTTPStatus.INTERNAL_SERVER_ERROR, text


def wants_json(request: Request) -> bool:
    return request.query_params.get("format") == "json"


def json_response(data: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(data, option=orjson.OPT_NON_STR_KEYS), status, media_type="application/json")


def _local_path(text: str) -> str:
    """A path of this console, never another site."""
    return text if text.startswith("/") and not text.startswith(("//", "/\\")) else "/"


class _Headers:
    """Refuses requests under a foreign host name, and gives every answer the headers of security.

    After an answer to a request that was not read to its end the connection is closed: the rest is never read.
    """

    def __init__(self, app: ASGIApp, names: Sequence[str]) -> None:
        self._app, self._names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_static = scope["path"].startswith("/static/")
        given = Request(scope).headers
        unread = "transfer-encoding" in given or given.get("content-length", "0") != "0"

        async def receive_and_look() -> Message:
            nonlocal unread
            message = await receive()
            if message["type"] == "http.request":
                unread = message.get("more_body", False)
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "max-age=3600" if is_static else "no-store")
                if unread:
                    headers["Connection"] = "close"
            await send(message)

        host = given.get("host", "")
        if not is_own_host(host, self._names):
            text = f"{host!r} is not a name of this console; start it with --host-name to allow it\n"
            answer = Response(text, HTTPStatus.MISDIRECTED_REQUEST, media_type="text/plain")
            await answer(scope, receive_and_look, send_with_headers)
            return
        await self._app(scope, receive_and_look, send_with_headers)
