"""The description of a lake: the place of its tables, and the source of each topic. A file lake.toml, or the same given
at once.

[lake]
format = "iceberg"                                  or delta
warehouse = "/data/lake"                            where tables are made
catalog = "sqlite:////data/lake/catalog.db"         Iceberg's; or a name from pyiceberg's own configuration, or a URL
namespace = "mqlake"

[topics.Orders]
stores = { broker-a = "/data/store" }               or namesrv = "127.0.0.1:9876"
table = "Orders"
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mqlake.base.durable import write_durably
from mqlake.errors import ConfigError, NotThereError, UnknownKeyError

FILE = "lake.toml"
ICEBERG, DELTA = "iceberg", "delta"
FORMATS = (ICEBERG, DELTA)
LATEST_SUFFIX = "_latest"
"""Suffix of a topic's table of latest rows, unless it is given a name."""
PARTITIONS = ("day", "none")
DEFAULT_NAMESPACE = "mqlake"
DEFAULT_COLUMNS = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "physicalOffset",
    "uniqKey",
    "tags",
    "keys",
    "properties",
    "bornTimestamp",
    "storeTimestamp",
    "reconsumeTimes",
    "body",
)
_KINDS = {"sqlite": "sql", "postgresql": "sql", "http": "rest", "https": "rest", "thrift": "hive"}


@dataclass(frozen=True)
class Lake:
    """The place of the tables. `catalog_properties` go to pyiceberg as they are."""

    warehouse: str
    format: str = ICEBERG
    catalog: str = ""
    namespace: str = DEFAULT_NAMESPACE
    catalog_properties: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise UnknownKeyError(self.format, FORMATS, what="table format")
        if not self.warehouse and (self.format == DELTA or not self.catalog):
            raise ConfigError("give a warehouse, where the tables are (--warehouse DIR)")
        if self.format == DELTA and (self.catalog or self.catalog_properties):
            raise ConfigError(
                "a catalog is for Iceberg; a Delta table is its directory: leave the catalog out"
            )
        if not re.fullmatch(r"\w+(\.\w+)*", self.namespace):
            raise ConfigError(
                f"{self.namespace!r} cannot be a namespace: letters, digits and _, parted by dots"
            )
        object.__setattr__(self, "warehouse", place(self.warehouse))

    def check_warehouse(self) -> None:
        """ConfigError for one that is no directory, or cannot have the catalog; it may not be there yet."""
        if "://" in self.warehouse and self.format == ICEBERG and not self.catalog:
            raise ConfigError(
                f"warehouse {self.warehouse} is no local directory, and Iceberg's catalog is a file in it by default: "
                "name a catalog (--catalog)"
            )
        if self.warehouse and os.path.exists(self.warehouse) and not os.path.isdir(self.warehouse):
            raise ConfigError(f"warehouse {self.warehouse} is a file: name a directory")

    @property
    def own_catalog(self) -> str:
        """The file of the catalog that the warehouse has where none is given."""
        return os.path.join(self.warehouse, "catalog.db")

    @property
    def catalog_name(self) -> str:
        return "mqlake" if "://" in self.catalog or not self.catalog else self.catalog

    def catalog_options(self) -> dict[str, str]:
        """pyiceberg's properties of the catalog: of a URL, of SQLite in the warehouse, or just those given."""
        url = self.catalog
        if not url:
            os.makedirs(self.warehouse, exist_ok=True)
            url = f"sqlite:///{self.own_catalog}"
        found = {}
        if "://" in url:
            scheme = url.partition("://")[0].partition("+")[0]
            if scheme not in _KINDS:
                raise ConfigError(
                    f"catalog {url!r}: use {', '.join(_KINDS)} or the name of a catalog of pyiceberg"
                )
            found = {"type": _KINDS[scheme], "uri": url}
        if self.warehouse:
            found["warehouse"] = self.warehouse
        if s3_endpoint():
            found["s3.endpoint"] = s3_endpoint()
        return {**found, **self.catalog_properties}


@dataclass(frozen=True)
class Topic:
    """The source of a topic, and its table. `stores`: directories by name; or `namesrv`: name servers. `bodies`: the
    spec of a decoder, empty for raw bodies. `latest`: only the latest row of each key."""

    topic: str
    stores: Mapping[str, str] = field(default_factory=dict)
    namesrv: str = ""
    table: str = ""
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    partition: str = "day"
    bodies: str = ""
    latest: bool = False

    def __post_init__(self) -> None:
        if self.latest:
            object.__setattr__(self, "partition", "none")
            if missing := [name for name in ("keys", "body") if name not in self.columns]:
                raise ConfigError(f"a table of latest rows needs the column {missing[0]!r}")
        if bool(self.stores) == bool(self.namesrv):
            raise ConfigError(f"topic {self.topic}: give either store directories or name servers")
        if self.partition not in PARTITIONS:
            raise UnknownKeyError(self.partition, PARTITIONS, what="partition")
        if not self.table:
            object.__setattr__(self, "table", table_name(self.topic) + (LATEST_SUFFIX if self.latest else ""))
        if table_name(self.table) != self.table:
            raise ConfigError(f"{self.table!r} cannot be a table's name: letters, digits and _")


def table_name(topic: str) -> str:
    """The topic with _ for what SQL does not like."""
    name = re.sub(r"\W", "_", topic, flags=re.ASCII)
    return f"_{name}" if name[:1].isdigit() else name


def place(path: str) -> str:
    """A local path as an absolute one, ~ replaced; a URL as it is."""
    if "://" in path and not path.startswith("file://"):
        return path.rstrip("/")
    return os.path.abspath(os.path.expanduser(path.removeprefix("file://"))) if path else ""


def s3_endpoint() -> str:
    """Returns the address of another S3 than Amazon's, by the variable that Amazon's own tools take; empty:
    Amazon's."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL", "")


def store_names(given: tuple[str, ...]) -> dict[str, str]:
    """Parses DIR or NAME=DIR; a name is the path unless it is given. ConfigError for a name given twice."""
    found: dict[str, str] = {}
    for each in given:
        match = re.fullmatch(r"([\w.-]+)=(.+)", each)
        path = place(match[2] if match else each)
        name = match[1] if match else path.replace(":", "_")
        if found.get(name, path) != path:
            raise ConfigError(f"two stores have the name {name!r}: {found[name]} and {path}")
        found[name] = path
    return found


def no_lake_file(path: str) -> str:
    """Returns the error text for a missing lake.toml: a warehouse alone does not know where its topics come from."""
    folder, name = os.path.split(path)
    if name != FILE or not os.path.isdir(folder):
        return f"there is no {path}"
    return (
        f"there is no {FILE} in {folder}, which says where the topics of a lake come from: make it with `mqlake "
        f"lake add NAME=STORE --warehouse {folder} --topic TOPIC`, which takes tables that are there already"
    )


@dataclass(frozen=True)
class LakeFile:
    """A lake and its topics, as a lake.toml has them."""

    lake: Lake
    topics: Mapping[str, Topic] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names: dict[str, str] = {}
        for topic in self.topics.values():
            other = names.setdefault(topic.table.lower(), topic.topic)
            if other != topic.topic:
                raise ConfigError(
                    f"the topics {other} and {topic.topic} would have the same table {topic.table}: name one (--table)"
                )

    def with_topic(self, topic: Topic) -> LakeFile:
        return replace(self, topics={**self.topics, topic.topic: topic})

    @classmethod
    def load(cls, path: str) -> LakeFile:
        """ConfigError, UnknownKeyError for what cannot be used, NotThereError; it names the file."""
        path = os.path.expanduser(path)
        path = os.path.join(path, FILE) if os.path.isdir(path) else path
        try:
            with open(path, "rb") as file:
                given = tomllib.load(file)
        except FileNotFoundError as error:
            raise NotThereError(no_lake_file(path)) from error
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}: {error}") from error
        try:
            _known(given, ("lake", "topics"))
            lake = Lake(**{"warehouse": "", **_fields(given.get("lake", {}), Lake(warehouse="/"), "lake")})
            tables = _table(given.get("topics", {}), "topics")
            topics = {
                name: Topic(name, **_fields(each, Topic(name, namesrv="-"), f"topics.{name}"))
                for name, each in tables.items()
            }
            return cls(lake, topics)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    def save(self, path: str) -> None:
        """Raises OSError."""
        write_durably(path, self.to_toml().encode())

    def to_toml(self) -> str:
        lines = ["# the tables of a lake: mqlake lake run keeps them up to date", "[lake]"]
        lines += _lines(self.lake, Lake(warehouse="/"), ())
        for topic in self.topics.values():
            lines += ["", f"[topics.{_value(topic.topic)}]"]
            lines += _lines(topic, Topic(topic.topic, namesrv="-"), ("topic",), always=("table",))
        return "\n".join(lines) + "\n"


def _fields(given: Any, like: Lake | Topic, where: str) -> dict[str, Any]:
    """The values of a TOML table by the fields of `like`, whose types they have. ConfigError, UnknownKeyError."""
    by_key = {name.replace("_", "-"): name for name in like.__dict__ if name != "topic"}
    _known(_table(given, where), by_key)
    found = {}
    for key, value in given.items():
        wanted = getattr(like, by_key[key])
        of_texts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        is_one = isinstance(value, _TOML[type(wanted)][0]) and all(isinstance(each, str) for each in of_texts)
        if not is_one:
            raise ConfigError(f"[{where}] {key} = {value!r}: {_TOML[type(wanted)][1]} is needed")
        found[by_key[key]] = tuple(value) if isinstance(value, list) else value
    return found


_TOML: dict[type, tuple[type, str]] = {
    str: (str, "a text"),
    bool: (bool, "true or false"),
    tuple: (list, "a list of texts"),
    dict: (dict, 'a table of texts, as { name = "text" },'),
}


def _table(given: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(given, dict):
        raise ConfigError(f"{where} = {given!r}: [{where}] is a table")
    return given


def _known(given: Mapping[str, Any], known: Any) -> None:
    for key in given:
        if key not in known:
            raise UnknownKeyError(key, known, what="key")


def _lines(value: Any, default: Any, without: tuple[str, ...], always: tuple[str, ...] = ()) -> list[str]:
    found = []
    for name, each in value.__dict__.items():
        if name not in without and (each != getattr(default, name) or name in always) and each:
            found.append(f"{name.replace('_', '-')} = {_value(each)}")
    return found


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_value(key)} = {_value(each)}" for key, each in value.items()) + " }"
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
