"""Checks argument types at the call: a TypeError names the argument, instead of an error later where it is used.

    @checked
    class Producer:
        async def send(self, message: Message, *, timeout_s: float | None = None) -> SendResult: ...

    producer.send("text")     TypeError: Producer.send: message has to be Message, not str

Annotations say what is checked: classes, `X | None`, functions, and the items of lists, tuples, sets and dicts. An
async method is checked when it is called, before it is awaited. Type variables, and anything else that `isinstance`
cannot decide, are not checked. A text has to be one that UTF-8 can hold, as it goes over the wire: ConfigError.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar, cast

from mqlake.base.text import unencodable
from mqlake.errors import ConfigError

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])
Check = Callable[[object], str | None]
"""Returns what is wrong with a value, or None."""

_ITEMS = (list, tuple, set, frozenset)
_WIDER: dict[type, tuple[type, ...]] = {
    float: (float, int),
    bytes: (bytes, bytearray, memoryview),
}


class _UnencodableError(Exception):
    """A text that UTF-8 cannot hold; the rest of the sentence."""


def checked(cls: Class) -> Class:
    """Checks the arguments of the class's public methods and of its constructor."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(
                cls, name, _checking(method, cls.__name__ if name == "__init__" else f"{cls.__name__}.{name}")
            )
    return cls


def checked_function(function: Function) -> Function:
    """Checks the arguments of one function."""
    return cast("Function", _checking(function, function.__name__))


def _checking(function: Callable[..., Any], called: str) -> Callable[..., Any]:
    names = list(inspect.signature(function).parameters)
    checks: dict[str, Check] | None = None

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        nonlocal checks
        if checks is None:
            checks = _checks_of(function)
        for given in (zip(names, args, strict=False), options.items()):
            for name, value in given:
                if name not in checks:
                    continue
                try:
                    wrong = checks[name](value)
                except _UnencodableError as error:
                    raise ConfigError(f"{called}: {name} {error}") from None
                if wrong is not None:
                    raise TypeError(f"{called}: {name} {wrong}")
        return function(*args, **options)

    return call


def _checks_of(function: Callable[..., Any]) -> dict[str, Check]:
    variable = {
        each.name
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
    }
    try:
        hints = typing.get_type_hints(function)
    except NameError:  # a name for type checkers only
        return {}
    return {
        name: check
        for name, hint in hints.items()
        if name != "return" and name not in variable and (check := _check_of(hint)) is not None
    }


def _check_of(hint: Any) -> Check | None:
    origin, given = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        choices = [each for each in given if each is not type(None)]
        checks = [_check_of(each) for each in choices]
        if any(check is None for check in checks):
            return None
        sure = [check for check in checks if check is not None]
        name = " or ".join(map(_name, given))
        return functools.partial(_check_choice, sure, len(choices) < len(given), name)
    if origin is collections.abc.Callable or hint is collections.abc.Callable:
        return lambda value: None if callable(value) else _has_to_be("a function", value)
    if isinstance(origin, type) and issubclass(origin, collections.abc.Iterable):
        items = [_check_of(each) for each in given if each is not Ellipsis]
        return functools.partial(_check_items, origin, items, _name(hint))
    if not isinstance(hint, type) or hint is object or hint is Any:
        return None
    if getattr(hint, "_is_protocol", False):
        members = sorted(name for name in vars(hint) if not name.startswith("_"))
        return functools.partial(_check_members, members, _name(hint))
    if hint is str:
        return _check_text
    return functools.partial(_check_class, _WIDER.get(hint, (hint,)), _name(hint))


def _check_class(kinds: tuple[type, ...], name: str, value: object) -> str | None:
    return None if isinstance(value, kinds) else _has_to_be(name, value)


def _check_text(value: object) -> str | None:
    if not isinstance(value, str):
        return _has_to_be("str", value)
    if wrong := unencodable(value):
        raise _UnencodableError(wrong)
    return None


def _check_choice(checks: list[Check], optional: bool, name: str, value: object) -> str | None:
    if optional and value is None:
        return None
    wrong = [check(value) for check in checks]
    if None in wrong:
        return None
    return wrong[0] if len(checks) == 1 else _has_to_be(name, value)


def _check_items(origin: type, items: list[Check | None], name: str, value: object) -> str | None:
    if not isinstance(value, origin) or isinstance(value, str | bytes):
        return _has_to_be(name, value)
    if isinstance(value, dict) and len(items) == 2:
        parts: Any = ((items[0], value.keys()), (items[1], value.values()))
    elif isinstance(value, _ITEMS) and len(items) == 1:
        parts = ((items[0], value),)
    else:
        return None
    for check, each in parts:
        for item in each if check is not None else ():
            if (wrong := check(item)) is not None:
                return f"{wrong}, in {name}"
    return None


def _check_members(members: list[str], name: str, value: object) -> str | None:
    missing = [each for each in members if not hasattr(value, each)]
    return f"{_has_to_be(name, value)}, which has no {' and no '.join(missing)}" if missing else None


def _has_to_be(name: str, value: object) -> str:
    text = f"has to be {name}, not {value.__name__ if isinstance(value, type) else type(value).__name__}"
    return f"{text}: encode() makes bytes of it" if name == "bytes" and isinstance(value, str) else text


def _name(hint: Any) -> str:
    if hint is type(None):
        return "None"
    if typing.get_origin(hint) is collections.abc.Callable:
        return "a function"
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else _short(str(hint))


def _short(text: str) -> str:
    """`collections.abc.Sequence[mqlake.message.Message]` → `Sequence[Message]`."""
    return re.sub(r"[\w.]+\.(?=\w)", "", text)
