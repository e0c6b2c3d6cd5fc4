"""Options of `mqlake lake`: a lake.toml, or the same given at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from mqlake.cli.options import assignments
from mqlake.cli.produce import duration_ms
from mqlake.errors import ConfigError, NotFoundError, NotThereError
from mqlake.lake.tables.config import (
    DEFAULT_NAMESPACE,
    FILE,
    FORMATS,
    ICEBERG,
    PARTITIONS,
    Lake,
    LakeFile,
    Topic,
    no_lake_file,
    store_names,
)
from mqlake.store.files.store_directory import check_is_directory

if TYPE_CHECKING:
    from mqlake.lake.tables.topic import RunOptions, TopicTable

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class LakeArguments:
    """The options that describe a lake; `places`: lake.toml, its folder, or stores."""

    places: tuple[str, ...] = ()
    format: str | None = None
    catalog: str | None = None
    catalog_properties: Mapping[str, str] | None = None
    warehouse: str | None = None
    namespace: str | None = None
    topics: tuple[str, ...] = ()
    namesrv: str = ""
    table: str = ""
    partition: str | None = None
    columns: tuple[str, ...] = ()
    bodies: str = ""
    latest: bool = False

    @property
    def file(self) -> str | None:
        """The lake.toml among the places; None if it is all on the command line."""
        for each in self.places:
            if each.endswith(".toml"):
                return each
            each = os.path.expanduser(each)
            if os.path.exists(os.path.join(each, FILE)) and not os.path.isdir(
                os.path.join(each, "commitlog")
            ):
                return os.path.join(each, FILE)
        return None

    @property
    def has_stores_only(self) -> bool:
        """True if it names stores, and neither tables nor topics."""
        return bool(self.places) and self.file is None and not (self.topics or self.warehouse or self.namesrv)

    @property
    def stores(self) -> list[str]:
        """The store directories among the places. NotAStoreError, NotThereError."""
        found = store_names(self.places)
        _check_stores(found.values())
        return list(found.values())

    def lake(self) -> LakeFile:
        """The lake with its topics. Raises ConfigError, NotFoundError, OSError."""
        if self.file is None:
            topics = {topic.topic: topic for topic in self.made_topics()}
            return LakeFile(self.made_lake(), topics)
        if len(self.places) > 1 or self.namesrv:
            raise ConfigError(f"{self.file} says where the topics come from: give nothing else")
        for option, value in (
            ("--catalog", self.catalog),
            ("--warehouse", self.warehouse),
            ("--format", self.format),
        ):
            if value is not None:
                raise ConfigError(f"{self.file} has it already: leave {option} out")
        found = LakeFile.load(self.file)
        for topic in self.topics:
            if topic not in found.topics:
                raise NotFoundError(topic, found.topics, what=f"topic of {self.file}")
        if not self.topics:
            return found
        return LakeFile(found.lake, {topic: found.topics[topic] for topic in self.topics})

    def made_lake(self) -> Lake:
        return Lake(
            self.warehouse or "",
            self.format or ICEBERG,
            self.catalog or "",
            self.namespace or DEFAULT_NAMESPACE,
            self.catalog_properties or {},
        )

    def made_topics(self) -> list[Topic]:
        """Returns the topics of the stores or brokers on the command line. ConfigError when none is named."""
        stores = store_names(self.places)
        if not stores and not self.namesrv:
            raise ConfigError("give a lake.toml, a store directory, or name servers (-n)")
        _check_stores(stores.values())
        if not self.topics:
            raise ConfigError(
                "name the topics (--topic TOPIC, repeatable), or a warehouse with a lake.toml, which names them"
            )
        if self.table and len(self.topics) > 1:
            raise ConfigError("--table names the table of one topic")
        more: dict[str, Any] = {"partition": self.partition} if self.partition else {}
        if self.columns:
            more["columns"] = self.columns
        return [
            Topic(
                topic,
                stores,
                self.namesrv,
                self.table,
                bodies=self._spec(topic, stores),
                latest=self.latest,
                **more,
            )
            for topic in self.topics
        ]

    def _spec(self, topic: str, stores: Mapping[str, str]) -> str:
        """The decoder of --bodies; a schema to be inferred comes from the topic's first messages."""
        if not self.bodies:
            return ""
        from mqlake.lake.bodies.body_format import BodyFormat
        from mqlake.lake.dataset import scan

        given = BodyFormat.parse(self.bodies, "--bodies")
        found = scan(
            list(stores.values()) or None, topic, namesrv=self.namesrv or None, bodies=given
        ).body_format
        return found.spec if found is not None else ""


def _check_stores(paths: Iterable[str]) -> None:
    """Raises NotAStoreError for a local path without a directory, NotThereError for a directory without a store."""
    for each in paths:
        if "://" in each:
            continue
        check_is_directory(each, must_exist=True)
        if not os.path.isdir(os.path.join(each, "commitlog")):
            raise NotThereError(f"{each} is no store directory, and {no_lake_file(os.path.join(each, FILE))}")


def _seconds(_ctx: click.Context, _param: click.Parameter, value: str) -> float:
    try:
        return duration_ms(value) / 1000
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a time such as 90s, 5m, 12h or 7d") from None


def age_option(name: str, default: str, help: str) -> Callable[[Command], Command]:
    """The command gets seconds."""
    return click.option(
        name, default=default, show_default=True, metavar="TIME", callback=_seconds, help=help
    )


_PLACE = (
    click.argument("places", metavar="[PLACE]...", nargs=-1, type=click.Path()),
    click.option("--topic", "topics", metavar="TOPIC", multiple=True, help="Topic; repeatable."),
    click.option("--table", default="", metavar="NAME", help="Name of the table of one topic."),
    click.option("--warehouse", metavar="DIR", help="Where tables are made: a directory, or a URL."),
    click.option("--format", type=click.Choice(FORMATS), help="Table format.  [default: iceberg]"),
    click.option(
        "--catalog",
        metavar="URL|NAME",
        help="Iceberg catalog: sqlite:///FILE, postgresql+psycopg2://…, http(s)://… (REST), thrift://… (Hive), or a "
        "name from pyiceberg's configuration.  [default: SQLite in the warehouse]",
    ),
    click.option(
        "--catalog-property",
        "catalog_properties",
        metavar="KEY=VALUE",
        multiple=True,
        callback=assignments,
        help="Property of the catalog; repeatable.",
    ),
    click.option(
        "--namespace", metavar="NAME", help=f"Namespace of the tables.  [default: {DEFAULT_NAMESPACE}]"
    ),
    click.option(
        "-n", "--namesrv", default="", metavar="HOST:PORT", help="Name servers: read from live brokers."
    ),
)
_MAKE = (
    click.option(
        "--partition", type=click.Choice(PARTITIONS), help="By day of store time, or not.  [default: day]"
    ),
    click.option(
        "--columns", metavar="A,B,…", default="", callback=lambda _c, _p, text: tuple(text.replace(",", " ").split()),
        help="Columns of the log that the table has.",
    ),
    click.option(
        "--latest",
        is_flag=True,
        help="Keep the latest row of each key (column keys) only; a message without a body deletes its key's row.",
    ),
    click.option(
        "--bodies",
        default="",
        metavar="FORMAT",
        help="Decode bodies to columns: text, json:infer, json:'id long, item string', json-schema:FILE, avro:FILE, "
        "protobuf:FILE[#MESSAGE], confluent:DIR, variant (any JSON; Delta).",
    ),
)  # fmt: skip


def lake_options(command: Command, options: Sequence[Any] = _PLACE) -> Command:
    """The command gets `given`."""

    def with_given(*arguments: Any, **named: Any) -> Any:
        mine = {name: named.pop(name) for name in LakeArguments.__dataclass_fields__ if name in named}
        return command(*arguments, given=LakeArguments(**mine), **named)

    with_given.__doc__, with_given.__name__ = command.__doc__, command.__name__
    with_given.__click_params__ = getattr(command, "__click_params__", [])  # type: ignore[attr-defined]
    decorated: Any = with_given
    for option in reversed(options):
        decorated = option(decorated)
    return decorated  # type: ignore[no-any-return]


def making_options(command: Command) -> Command:
    """lake_options(), and how new tables are made."""
    return lake_options(command, (*_PLACE, *_MAKE))


def opened(
    given: LakeArguments, options: RunOptions | None = None, *, create: bool = True
) -> list[TopicTable]:
    """The tables of a lake. Raises what TopicTable.open() raises."""
    from mqlake.lake.tables.topic import RunOptions, TopicTable

    lake = given.lake()
    return TopicTable.open_all(lake.lake, lake.topics.values(), options or RunOptions(), create=create)
