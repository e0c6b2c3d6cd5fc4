"""Typed settings: the description of each key of a Java properties file, and configurations made of such keys.

A field that `setting()` declares carries its unit, range and meaning, so the checks, the error texts and
docs/configuration.md all come from one list. Its key is its name in camelCase: `mapped_file_size_commit_log` is
`mappedFileSizeCommitLog` in a broker.conf.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from mqlake.base.names import camel_case
from mqlake.errors import ConfigError, UnknownKeyError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

_SIZE = re.compile(r"([+-]?\d+)\s*([kmg]?)b?", re.IGNORECASE)
_SIZE_FACTOR = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3}

T = TypeVar("T")


def parse_size(option: str, text: str, least: int = 1) -> int:
    """Bytes: a number, or one followed by k, m or g. ConfigError names the option."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or int(match[1]) < least:
        raise ConfigError(f"option {option!r} is {text!r}; it takes bytes, or a number with k, m or g")
    return int(match[1]) * _SIZE_FACTOR[match[2].lower()]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """The description of one key. `low` and `high` are inclusive; `fixed`: must match the files on disk; `live`: a
    change at run time takes effect at once; `own`: not a key of RocketMQ 5.3.3; `later`: the versions after it that
    have the key."""

    key: str
    doc: str
    default: Any
    unit: str
    low: int
    high: int
    fixed: bool
    live: bool
    own: bool
    later: str

    @property
    def type_name(self) -> str:
        """`int`, `long`, `boolean`, `string` or the names of a choice."""
        if isinstance(self.default, bool):
            return "boolean"
        if isinstance(self.default, int):
            return "int" if self.high <= INT_MAX else "long"
        if isinstance(self.default, enum.Enum):
            return " | ".join(member.name for member in type(self.default))
        return "string"

    @property
    def default_text(self) -> str:
        return text_of(self.default)

    def parse(self, value: object) -> Any:
        """`value` (text, or of the right type) as the field's type; ConfigError says what is allowed."""
        default = self.default
        if isinstance(default, bool):
            return self._parse_bool(value)
        if isinstance(default, int):
            return self._parse_int(value)
        if isinstance(default, enum.Enum):
            return self._parse_choice(value, type(default))
        if not isinstance(value, str):
            raise self._error(value, "text is needed")
        return value.strip()

    def _parse_bool(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        text = value.strip().lower() if isinstance(value, str) else ""
        if text not in ("true", "false"):
            raise self._error(value, "true or false is needed")
        return text == "true"

    def _parse_int(self, value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and self.unit == "bytes" and (match := _SIZE.fullmatch(value.strip())):
            number = int(match[1]) * _SIZE_FACTOR[match[2].lower()]
        elif isinstance(value, str) and re.fullmatch(r"[+-]?\d+", value.strip(), re.ASCII):
            number = int(value)
        else:
            suffixes = " (64k, 16m and 1g are understood)" if self.unit == "bytes" else ""
            raise self._error(value, f"a whole number is needed{suffixes}")
        if not self.low <= number <= self.high:
            raise self._error(value, f"{self.low} to {self.high} is allowed")
        return number

    def _parse_choice(self, value: object, choices: type[enum.Enum]) -> enum.Enum:
        if isinstance(value, choices):
            return value
        name = value.strip() if isinstance(value, str) else ""
        if name not in choices.__members__:
            raise self._error(value, f"{' or '.join(choices.__members__)} is needed")
        return choices[name]

    def _error(self, value: object, allowed: str) -> ConfigError:
        unit = f" {self.unit}" if self.unit and self.unit != "bytes" else ""
        return ConfigError(f"{self.key}={text_of(value)}{unit}: {allowed}")


def text_of(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.name if isinstance(value, enum.Enum) else str(value)


def setting(
    default: T,
    doc: str,
    *,
    key: str = "",
    unit: str = "",
    low: int = 0,
    high: int = INT_MAX,
    fixed: bool = False,
    live: bool = False,
    own: bool | str = False,
    factory: Any = None,
) -> T:
    """A field of a Settings class. `key`: if it is not the name in camelCase; with a `factory` that makes the default,
    `default` only describes it. `own` may name the versions of RocketMQ after 5.3.3 that have the key."""
    metadata = {
        "setting": Setting(
            key=key,
            doc=doc,
            default=default,
            unit=unit,
            low=low,
            high=high,
            fixed=fixed,
            live=live,
            own=bool(own),
            later=own if isinstance(own, str) else "",
        )
    }
    if factory is not None:
        return dataclasses.field(default_factory=factory, metadata=metadata)  # type: ignore[no-any-return]
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """A configuration of fields by `setting()`. Raises ConfigError at construction when a value cannot be used.

    Attributes cannot be assigned. `replaced` makes another configuration; only `change` alters this one.
    """

    @classmethod
    @functools.cache
    def described(cls) -> tuple[Mapping[str, str], Mapping[str, Setting]]:
        """The results of attributes_of and settings_of, made once: each new configuration looks at them several
        times."""
        fields = [field for field in dataclasses.fields(cls) if "setting" in field.metadata]
        settings: list[Setting] = [field.metadata["setting"] for field in fields]
        keys = [one.key or camel_case(field.name) for one, field in zip(settings, fields, strict=True)]
        attributes = {key: field.name for key, field in zip(keys, fields, strict=True)}
        return attributes, {
            key: dataclasses.replace(one, key=key) for key, one in zip(keys, settings, strict=True)
        }

    def __post_init__(self) -> None:
        attributes, settings = self.described()
        for key, known in settings.items():
            self._set(attributes[key], known.parse(getattr(self, attributes[key])))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def replaced(self, mapping: Mapping[str, object]) -> Self:
        """Another configuration, with the values in `mapping`; ignores keys of other configurations. ConfigError."""
        attributes, known = self.described()
        changes = {attributes[key]: known[key].parse(value) for key, value in mapping.items() if key in known}
        return dataclasses.replace(self, **changes)

    def change(self, mapping: Mapping[str, object]) -> None:
        """Changes live settings in place, so that all who hold this see them. All or none: ConfigError."""
        attributes, known = self.described()
        if fixed := sorted(key for key in mapping if key not in known or not known[key].live):
            raise ConfigError(f"{', '.join(fixed)}: cannot be changed at run time")
        changed = self.replaced(mapping)
        for key in mapping:
            self._set(attributes[key], getattr(changed, attributes[key]))

    def to_mapping(self) -> dict[str, bool | int | str]:
        """RocketMQ's key → value (choices as their names), in the order of the fields."""
        values = {key: getattr(self, attribute) for key, attribute in self.described()[0].items()}
        return {key: value.name if isinstance(value, enum.Enum) else value for key, value in values.items()}


def attributes_of(kind: type[Settings]) -> dict[str, str]:
    """Key → name of its attribute, in the order of the fields."""
    return dict(kind.described()[0])


def settings_of(kind: type[Settings]) -> dict[str, Setting]:
    """Key → its description, in the order of the fields."""
    return dict(kind.described()[1])


Value = bool | int | float | str | None
"""The value of a key without effect; None where Java has null."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UnusedKey:
    """A key of RocketMQ that mqlake does not act on. `refused`: ignoring any value but the default does harm."""

    key: str
    default: Value
    why: str
    refused: bool

    def check(self, value: object) -> None:
        """Raises ConfigError, which says what to do instead, if the value cannot be ignored."""
        if self.refused and text_of(value).strip().lower() != self.default_text.lower():
            allowed = f"only {self.default_text} is allowed" if self.default_text else "no value is allowed"
            raise ConfigError(f"{self.key}={text_of(value)}: {allowed}; {self.why}")

    @property
    def default_text(self) -> str:
        return "" if self.default is None else text_of(self.default)


NEARLY_THE_SAME = 0.8
"""Cutoff for difflib: `flushDiskTyp`, `flush.disk.type` and `flushDisk` are meant to be flushDiskType."""


def _plain(key: str) -> str:
    return "".join(filter(str.isalnum, key)).lower()


class KnownKeys:
    """All keys that one properties file may have: those acted on, and those of RocketMQ that are not. `decisive`: those
    whose misspelling is no remark but an error, as the default in their place is worth less than what was asked for."""

    def __init__(
        self,
        acted_on: Mapping[str, Setting],
        *unused: Mapping[str, UnusedKey],
        decisive: Collection[str] = (),
    ) -> None:
        self._decisive = decisive
        self.acted_on = dict(acted_on)
        self.unused = {key: known for table in unused for key, known in table.items() if key not in acted_on}

    def __iter__(self) -> Iterator[str]:
        return iter([*self.acted_on, *self.unused])

    def __contains__(self, key: object) -> bool:
        return key in self.acted_on or key in self.unused

    def require(self, keys: Iterable[str]) -> None:
        """Raises UnknownKeyError for the first unknown key, with the nearest known one."""
        for key in keys:
            if key not in self:
                raise UnknownKeyError(key, self)

    def remarks(self, mapping: Mapping[str, object]) -> list[str]:
        """Remarks for the operator on the keys without effect and on the unknown ones.

        Raises ConfigError for a key that cannot be ignored, and for one that looks like a decisive one misspelt.
        """
        for key in mapping:
            if key not in self and (meant := self._meant(key)) is not None:
                raise ConfigError(
                    f"unknown configuration key {key!r}; it looks like {meant!r}, which decides what an "
                    "acknowledgement is worth: correct its name, or take it out"
                )
        idle = self.without_effect(mapping)
        remarks = [f"without effect here: {', '.join(idle)}"] if idle else []
        return remarks + [str(UnknownKeyError(key, self)) for key in mapping if key not in self]

    def _meant(self, key: str) -> str | None:
        """The decisive key that an unknown one is nearly the same as."""
        import difflib

        plain = {_plain(each): each for each in self}
        near = difflib.get_close_matches(_plain(key), plain, n=1, cutoff=NEARLY_THE_SAME)
        return plain[near[0]] if near and plain[near[0]] in self._decisive else None

    def without_effect(self, mapping: Mapping[str, object]) -> list[str]:
        """The keys of `mapping` that are accepted but not acted on. ConfigError for one that cannot be ignored."""
        given = [self.unused[key] for key in mapping if key in self.unused]
        for known in given:
            known.check(mapping[known.key])
        return sorted(known.key for known in given if not known.refused)


def parse_assignments(assignments: Iterable[str]) -> dict[str, str]:
    """`key=value` texts as a mapping; the last value of a key counts. ConfigError if a text has no `=`."""
    mapping = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"{assignment!r}: key=value is needed")
        mapping[key.strip()] = value.strip()
    return mapping
