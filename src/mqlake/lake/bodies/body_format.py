"""The format of a topic's bodies: given once by a user, kept with a table as JSON, and the decoder it stands for.

    json "id long, at timestamp_ms"   ─┐
    json infer ─▶ a sample ─▶ its DDL ─┼─▶ BodyFormat ⇄ spec (JSON) ─▶ columns value, undecoded, undecoded_reason
    order.avsc, order.desc, schemas/  ─┘

Files are read when a format is made: the spec is whole, so tasks and later runs need no files.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from mqlake.errors import ConfigError, NotThereError, UnknownKeyError
from mqlake.lake.bodies.avro import AvroDecoder
from mqlake.lake.bodies.confluent import ConfluentDecoder
from mqlake.lake.bodies.decoder import (
    BODY,
    REASON,
    UNDECODED,
    VALUE,
    Decoder,
    TextDecoder,
    decode_bodies,
    decoded_fields,
)
from mqlake.lake.bodies.evolution import merged
from mqlake.lake.bodies.inference import SAMPLE, infer
from mqlake.lake.bodies.json_bodies import JsonDecoder
from mqlake.lake.bodies.json_schema import parse_json_schema
from mqlake.lake.bodies.protobuf import ProtobufDecoder
from mqlake.lake.bodies.types import ColumnType, parse_ddl, struct_of
from mqlake.lake.bodies.variant import VariantDecoder

TEXT, JSON, AVRO, PROTOBUF, CONFLUENT = "text", "json", "avro", "protobuf", "confluent"
VARIANT = "variant"
KINDS = (TEXT, VARIANT, JSON, "json-schema", AVRO, PROTOBUF, CONFLUENT)
"""As parse() takes them."""
INFER = "infer"
_SCHEMA_FILE = re.compile(r"(\d+)\.(avsc|json|desc)")
_KIND_OF_FILE = {"avsc": AVRO, "json": JSON, "desc": PROTOBUF}


@dataclass(frozen=True)
class BodyFormat:
    """`schema`: the DDL of JSON, the text of an Avro schema, a Protobuf descriptor set in base64. `schemas`: of
    Confluent's format the kind and schema of each id. `columns`: the DDL of a table's column, where that has more than
    the schema; empty: the schema's own."""

    kind: str
    schema: str = ""
    message: str = ""
    schemas: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    inferred: bool = False
    columns: str = ""

    # ------------------------------------------------------------------ from what a user gives

    @classmethod
    def given(
        cls,
        *,
        text: bool = False,
        variant: bool = False,
        json: str | None = None,
        json_schema: str | os.PathLike[str] | None = None,
        avro: str | os.PathLike[str] | None = None,
        protobuf: str | os.PathLike[str] | None = None,
        message: str = "",
        confluent: str | os.PathLike[str] | None = None,
    ) -> BodyFormat | None:
        """One of: `json` a DDL or `infer`, the others a file (of `confluent` a folder) with the schema; None: raw.

        `message`: of a Protobuf descriptor set with several. ConfigError, UnknownKeyError for an invalid schema.
        """
        chosen = [
            each
            for each in (text or None, variant or None, json, json_schema, avro, protobuf, confluent)
            if each is not None
        ]
        if len(chosen) > 1:
            raise ConfigError(
                "bodies have one format: give one of text, variant, json, JSON Schema, Avro, Protobuf, Confluent"
            )
        if message and protobuf is None:
            raise ConfigError("a message's name is for Protobuf bodies: give their descriptor set")
        if text or variant:
            return cls(TEXT if text else VARIANT)
        if json is not None:
            is_inferred = json.strip().lower() == INFER
            found = cls(JSON, inferred=True) if is_inferred else cls(JSON, parse_ddl(json).ddl)
            if found.schema and parse_ddl(found.schema).uses("variant"):
                raise ConfigError(
                    "a variant is the whole body (--bodies variant); for one field use the type json"
                )
        elif json_schema is not None:
            found = cls(JSON, _read(json_schema, lambda data: parse_json_schema(data).ddl))
        elif avro is not None:
            found = cls(AVRO, _read(avro, bytes.decode))
        elif protobuf is not None:
            found = cls(PROTOBUF, _read(protobuf, lambda data: base64.b64encode(data).decode()), message)
        elif confluent is not None:
            found = cls(CONFLUENT, schemas=_folder(os.fspath(confluent)))
        else:
            return None
        if not found.needs_sample:
            try:
                found.decoder()
            except ConfigError as error:
                if (file := avro or protobuf) is None:
                    raise
                raise ConfigError(f"{os.fspath(file)}: {error}") from error
        return found

    @classmethod
    def parse(cls, text: str, name: str = "bodies") -> BodyFormat:
        """Parses `text`, `variant`, `json:infer`, `json:DDL` and KIND:FILE, of Protobuf also FILE#MESSAGE.

        `name`: what errors call the option. Raises what given() raises.
        """
        kind, _, value = text.partition(":")
        if kind not in KINDS:
            raise UnknownKeyError(kind, KINDS, what="format of bodies")
        whole = kind in (TEXT, VARIANT)
        if whole and value:
            raise ConfigError(f"{name} {kind} takes nothing after it, not {value!r}")
        if not whole and not value:
            what = "json:infer, or json:'id long, item string'" if kind == JSON else f"{kind}:FILE"
            raise ConfigError(f"{name} {kind} needs a schema: {what}")
        message = ""
        if kind == PROTOBUF:
            value, _, message = value.partition("#")
        options: dict[str, Any] = {kind.replace("-", "_"): whole or value}
        found = cls.given(message=message, **options)
        assert found is not None
        return found

    @property
    def needs_sample(self) -> bool:
        """True if its schema is still to be inferred."""
        return self.inferred and not self.schema

    def with_sample(self, bodies: Iterable[bytes | None]) -> BodyFormat:
        """An inferred format with what these bodies have, too: new fields are added, types stay. Others as they are.

        ConfigError where there is no schema yet and the sample gives none.
        """
        if not self.inferred:
            return self
        if not self.schema:
            return replace(self, schema=infer(bodies).ddl)
        try:
            found = infer(bodies)
        except ConfigError:
            return self  # nothing to learn from these
        return replace(self, schema=_added(parse_ddl(self.schema), found).ddl)

    def following(self, before: BodyFormat) -> BodyFormat:
        """This format for a table whose bodies had the format `before`: its column keeps what it has, and gets more.

        SchemaChangeError for what the column cannot follow.
        """
        columns = merged(before.column, self.decoder().type)
        return replace(self, columns="" if columns == self.decoder().type else _as_columns(columns))

    # ------------------------------------------------------------------ kept, and made again

    @property
    def spec(self) -> str:
        kept = {name: value for name, value in self.__dict__.items() if value and not name.startswith("_")}
        return json.dumps(kept, sort_keys=True)

    @classmethod
    def from_spec(cls, spec: str) -> BodyFormat:
        """ConfigError for what is no spec."""
        try:
            given = json.loads(spec)
            schemas = {number: (kind, text) for number, (kind, text) in given.pop("schemas", {}).items()}
            return cls(**given, schemas=schemas)
        except (ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"no format of bodies: {spec[:200]!r}") from error

    @property
    def column(self) -> ColumnType:
        """The type of the column `value`."""
        if not self.columns:
            return self.decoder().type
        wrapped: ColumnType = parse_ddl(self.columns).fields[0][1]
        return wrapped

    def decoder(self) -> Decoder:
        """ConfigError for an invalid schema, and for one that is still to be inferred."""
        return _decoder(self.spec)

    @property
    def body_columns(self) -> BodyColumns:
        return BodyColumns(self.spec)


def format_of(bodies: BodyFormat | Mapping[str, Any] | None) -> BodyFormat | None:
    """A format as users give it: made already, or what `BodyFormat.given` takes, such as {"json": "infer"}.

    ConfigError, UnknownKeyError for anything else.
    """
    if bodies is None or isinstance(bodies, BodyFormat):
        return bodies
    if not isinstance(bodies, Mapping):
        raise ConfigError(
            f'bodies = {bodies!r}: a dict is needed, such as {{"json": "infer"}} or {{"text": True}}'
        )
    for name, value in bodies.items():
        if name not in _GIVEN:
            raise UnknownKeyError(str(name), _GIVEN, what="format of bodies")
        if value is not None and not isinstance(value, _GIVEN[name]):
            what = "True or False" if _GIVEN[name] is bool else "a text"
            raise ConfigError(f"bodies: {name} is {value!r}: {what} is needed")
    return BodyFormat.given(**bodies)


_GIVEN: dict[str, Any] = {
    **dict.fromkeys(("text", "variant"), bool),
    **dict.fromkeys(("json", "message"), str),
    **dict.fromkeys(("json_schema", "avro", "protobuf", "confluent"), (str, os.PathLike)),
}


def decode(messages: pa.Table, bodies: BodyFormat | Mapping[str, Any]) -> pa.Table:
    """A table of messages with `value`, `undecoded` and `undecoded_reason` in place of its column `body`.

    `bodies`: {"json": "id long, at timestamp_ms"}, {"json": "infer"} (from the first of these messages), {"avro": FILE}
    and what else `BodyFormat.given` takes. Raises ConfigError and UnknownKeyError for an invalid schema.
    """
    format = format_of(bodies)
    if format is None:
        return messages
    if BODY not in messages.schema.names:
        raise ConfigError("the messages have no column 'body' that could be decoded")
    if format.inferred:
        format = format.with_sample(messages.column(BODY).slice(0, SAMPLE).to_pylist())
    columns = format.body_columns
    batches = [columns.replaced(batch) for batch in messages.to_batches()]
    return pa.Table.from_batches(batches, columns.schema(messages.schema))


class BodyColumns:
    """The columns that replace `body` in batches of messages (lake.tables.rows.BodyDecoder). Can be pickled."""

    def __init__(self, spec: str) -> None:
        self.spec = spec
        format = BodyFormat.from_spec(spec)
        self._decoder, self._kind = format.decoder(), format.column.arrow

    @property
    def fields(self) -> Sequence[pa.Field]:
        """`value`, `undecoded`, `undecoded_reason`."""
        return decoded_fields(self._kind)

    def decode(self, batch: pa.RecordBatch) -> list[pa.Array]:
        """An array for each of `fields`. ConfigError for a batch without bodies."""
        if BODY not in batch.schema.names:
            raise ConfigError(
                "the messages have no column 'body' that could be decoded: is includeBody false?"
            )
        return decode_bodies(batch.column(BODY), self._decoder, self._kind)

    def schema(self, messages: pa.Schema) -> pa.Schema:
        """Returns the schema of messages with the three columns in place of the body."""
        fields: list[pa.Field] = []
        for each in messages:
            fields += self.fields if each.name == BODY else [each]
        return pa.schema(fields)

    def replaced(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch with them. ConfigError for a batch without bodies."""
        schema = self.schema(batch.schema)
        decoded = dict(zip((VALUE, UNDECODED, REASON), self.decode(batch), strict=True))
        columns = [decoded[name] if name in decoded else batch.column(name) for name in schema.names]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return BodyColumns, (self.spec,)


@functools.lru_cache(maxsize=64)
def _decoder(spec: str) -> Decoder:
    format = BodyFormat.from_spec(spec)
    if format.needs_sample:
        raise ConfigError("the schema of the JSON bodies is still to be inferred: it needs a sample of them")
    if format.kind == CONFLUENT:
        decoders = {
            int(number): _of_kind(kind, schema, "", f"schema {number}")
            for number, (kind, schema) in format.schemas.items()
        }
        return ConfluentDecoder(decoders)
    if format.inferred:
        return JsonDecoder(parse_ddl(format.schema), inferred=True)
    return _of_kind(format.kind, format.schema, format.message, "the schema")


def _of_kind(kind: str, schema: str, message: str, what: str) -> Decoder:
    try:
        if kind == TEXT:
            return TextDecoder()
        if kind == VARIANT:
            return VariantDecoder()
        if kind == JSON:
            return JsonDecoder(parse_ddl(schema))
        if kind == AVRO:
            return AvroDecoder(schema)
        if kind == PROTOBUF:
            return ProtobufDecoder(base64.b64decode(schema), message)
    except ConfigError as error:
        if what == "the schema":
            raise
        raise ConfigError(f"{what}: {error}") from error
    raise ConfigError(f"there is no format of bodies {kind!r}")


def _as_columns(kind: ColumnType) -> str:
    return struct_of([(VALUE, kind)]).ddl


def _added(known: ColumnType, seen: ColumnType) -> ColumnType:
    """`known`, with the fields that only `seen` has; what both have keeps its type."""
    if known.name != "struct" or seen.name != "struct":
        return known
    later = dict(seen.fields)
    lower = {name.lower() for name, _ in known.fields}
    return struct_of(
        [
            *((name, _added(kind, later.get(name, kind))) for name, kind in known.fields),
            *((name, kind) for name, kind in seen.fields if name.lower() not in lower),
        ]
    )


def _read(path: str | os.PathLike[str], convert: Any) -> str:
    try:
        with open(os.path.expanduser(path), "rb") as file:
            found: str = convert(file.read())
            return found
    except OSError as error:
        raise _unreadable(os.fspath(path), error) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{os.fspath(path)}: not a text in UTF-8, as a schema is") from error
    except ConfigError as error:
        raise ConfigError(f"{os.fspath(path)}: {error}") from error


def _unreadable(path: str, error: OSError) -> ConfigError:
    kind = NotThereError if isinstance(error, FileNotFoundError) else ConfigError
    return kind(f"{path}: {error.strerror}")


def _folder(path: str) -> dict[str, tuple[str, str]]:
    """The schemas of a folder by their ids. ConfigError when it has none, or an id twice."""
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        raise _unreadable(path, error) from error
    found: dict[str, tuple[str, str]] = {}
    converters: dict[str, Any] = {
        AVRO: bytes.decode,
        JSON: lambda data: parse_json_schema(data).ddl,
        PROTOBUF: lambda data: base64.b64encode(data).decode(),
    }
    for name in names:
        match = _SCHEMA_FILE.fullmatch(name)
        if match is None:
            continue
        number, kind = str(int(match[1])), _KIND_OF_FILE[match[2]]
        if number in found:
            raise ConfigError(f"{path}: schema {number} is there twice")
        found[number] = (kind, _read(os.path.join(path, name), converters[kind]))
    if not found:
        raise ConfigError(
            f"{path}: no schemas: files such as 7.avsc, 8.json (JSON Schema), 9.desc, named by their ids"
        )
    return found
