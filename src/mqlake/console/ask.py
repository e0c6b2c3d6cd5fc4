"""Ask: one question to the console, from a browser, a script or an MCP client, with its parameters checked."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from mqlake.base.clock import parse_time_ms
from mqlake.console.bodies import Bodies
from mqlake.errors import ConfigError, UnknownKeyError

if TYPE_CHECKING:
    from mqlake.client.admin import Admin
    from mqlake.console.jobs import Jobs
    from mqlake.console.sampler import Sampler
    from mqlake.console.store_files import StoreFiles

ROWS = 50
"""Rows of a page unless asked otherwise."""
ROWS_MAX = 1000

FORM_MAX = 64 << 10
TURNS = 4
"""Pages with messages that are made at once; others wait. One has at most some 50 MiB of them in memory."""

T = TypeVar("T")


class NotAllowedError(ConfigError):
    """A change was asked of a console that was started read-only."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """All questions about a cluster go through here, with the rights of one user."""

    admin: Admin
    sampler: Sampler
    user: str = ""
    """Name of the user who is logged in; empty without access control."""
    is_super: bool = True
    """True if the user may see everything."""


@dataclass(slots=True)
class Context:
    """The arguments that the console was started with, and the asking user."""

    stores: Mapping[str, StoreFiles] = field(default_factory=dict)
    cluster: Cluster | None = None
    jobs: Jobs | None = None
    allow_changes: bool = False
    bodies: Bodies = field(default_factory=Bodies)
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(TURNS))
    """Turns of questions that bring messages here; one for the whole process."""


@dataclass(frozen=True, slots=True)
class Param:
    name: str
    help: str
    kind: str = "string"
    """As in JSON Schema: string, integer or boolean."""
    required: bool = False


class Ask:
    """`values` are the parameters as text: of the path, the query string and a form."""

    def __init__(self, values: Mapping[str, str], context: Context) -> None:
        self.values = values
        self.context = context

    @property
    def admin(self) -> Admin:
        return self.cluster.admin

    @property
    def cluster(self) -> Cluster:
        """ConfigError if the console shows directories only."""
        if self.context.cluster is None:
            raise ConfigError("this console shows store directories; start it with -n to see a cluster")
        return self.context.cluster

    @property
    def store(self) -> StoreFiles:
        """The store that the parameter `store` names. UnknownKeyError."""
        name = self.text("store")
        if name not in self.context.stores:
            raise UnknownKeyError(name, self.context.stores, what="store")
        return self.context.stores[name]

    def check_changes(self) -> None:
        """NotAllowedError."""
        if not self.context.allow_changes:
            raise NotAllowedError(
                "this console is read-only; `mqlake console --allow-changes` lets it change things"
            )

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, default).strip()

    def raw_text(self, name: str) -> str:
        """With the spaces around it."""
        return self.values.get(name, "")

    def need(self, name: str) -> str:
        """ConfigError if it is missing or empty."""
        found = self.text(name)
        if not found:
            raise ConfigError(f"{name} is missing")
        return found

    def flag(self, name: str) -> bool:
        return self.text(name).lower() in ("1", "true", "yes", "on")

    def number(self, name: str, default: int, low: int = 0, high: int = 2**63 - 1) -> int:
        """ConfigError for what is not a whole number from `low` to `high`."""
        text = self.text(name)
        if not text:
            return default
        try:
            number = int(text)
        except ValueError:
            raise ConfigError(f"{name}: {text[:40]!r} is not a whole number") from None
        if not low <= number <= high:
            raise ConfigError(f"{name}: {number} is not from {low} to {high}")
        return number

    def time(self, name: str) -> int | None:
        """ms since 1970; None if it is not given. ConfigError."""
        text = self.text(name)
        try:
            return parse_time_ms(text) if text else None
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None

    def rows(self) -> int:
        """How many rows a page has."""
        return self.number("rows", ROWS, 1, ROWS_MAX)

    def paged(self, items: Sequence[T]) -> tuple[Sequence[T], dict[str, int]]:
        """The items of the page that is asked for (`page` from 1 on, `rows` of each), and where it lies."""
        rows = self.rows()
        pages = max(1, math.ceil(len(items) / rows))
        page = min(self.number("page", 1, 1), pages)
        place = {"page": page, "pages": pages, "rows": rows, "total": len(items)}
        return items[(page - 1) * rows : page * rows], place


PAGE_PARAMS = (
    Param("page", "Number of the page, from 1 on.", "integer"),
    Param("rows", f"Rows of a page, at most {ROWS_MAX}.", "integer"),
)

Query = Callable[[Ask], Awaitable[dict[str, Any]]]


@dataclass(frozen=True, slots=True)
class Page:
    """A page that is served under one path, as HTML and as JSON."""

    path: str
    title: str
    template: str
    query: Query
    params: tuple[Param, ...] = ()
    tool: str = ""
    """Name as an MCP tool; empty: it is none."""
    of: str = ""
    """The page's need: "cluster", "store" or nothing."""
    action: Query | None = None
    """Answers POST to the same path; what it returns is shown by the same template."""
    form: tuple[Param, ...] = ()
    """Parameters of a POST."""
    harmless: bool = False
    """A POST changes nothing that lasts, so that a read-only console takes it."""
    form_max: int = FORM_MAX
    """Bytes of its form."""
    has_messages: bool = False
    """It brings messages of brokers here, so it is made in its turn."""

    async def answer(self, ask: Ask, *, is_post: bool = False) -> dict[str, Any]:
        """Returns the answer of the page's query, or of its action."""
        query = self.action if is_post else self.query
        assert query is not None
        async with ask.context.turns if self.has_messages else contextlib.nullcontext():
            return await query(ask)

    @property
    def path_params(self) -> list[str]:
        return [part.split("}")[0] for part in self.path.split("{")[1:]]
