"""Fields: the metaclass of headers and bodies, whose classes list their fields and nothing else.

class PollingInfoResponseHeader(CommandHeader):        a dataclass with slots, made with keyword arguments
    polling_num: int

A process imports hundreds of them and uses a few, so what dataclasses make for a class is made when it is first used.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, dataclass_transform

_FIELDS = "__dataclass_fields__"
_OWN = "_own_fields"
"""The attribute with what a class itself lists: name → annotation, and name → default."""
_MADE = ("__init__", "__repr__", "__eq__", "__dataclass_params__", "__match_args__")
_lock = threading.RLock()


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Fields(type):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        annotations = {
            field: annotation
            for field, annotation in namespace.get("__annotations__", {}).items()
            if not annotation.startswith("ClassVar[")  # texts, as everywhere
        }
        defaults = {field: namespace.pop(field) for field in annotations if field in namespace}
        inherited = {slot for base in bases for each in base.__mro__ for slot in _own(each)[0]}
        namespace["__slots__"] = tuple(field for field in annotations if field not in inherited)
        namespace[_OWN] = annotations, defaults
        namespace[_FIELDS] = _LATER
        for method, later in _METHODS.items():
            namespace.setdefault(method, later)
        return super().__new__(cls, name, bases, namespace)


def _own(kind: type) -> tuple[dict[str, str], dict[str, Any]]:
    own: tuple[dict[str, str], dict[str, Any]] = kind.__dict__.get(_OWN, ({}, {}))
    return own


def _complete(kind: type) -> None:
    """Gives a class what dataclass() makes of its fields and those that it inherits, which come first."""
    with _lock:
        if kind.__dict__[_FIELDS] is not _LATER:
            return
        namespace: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__name__}
        annotations: dict[str, str] = {}
        for each in reversed(kind.__mro__):
            own, defaults = _own(each)
            annotations |= own
            for field in own:
                namespace.pop(field, None)
            namespace |= defaults
        # on a class apart: the slots of this one stay what they are, and its objects usable meanwhile
        apart: Any = type(kind.__name__, (), {**namespace, "__annotations__": annotations})
        made = dataclasses.dataclass(kw_only=True)(apart)
        for name in _MADE:
            if kind.__dict__.get(name) is _METHODS.get(name):
                setattr(kind, name, made.__dict__[name])
        setattr(kind, _FIELDS, made.__dict__[_FIELDS])


class _Later:
    """Stands for the fields of a class until they are asked for."""

    def __get__(self, instance: object, owner: type) -> Any:
        _complete(owner)
        return owner.__dict__[_FIELDS]


_LATER = _Later()


def _later(name: str) -> Callable[..., Any]:
    """Stands for a method until it is called."""

    def method(self: object, *args: Any, **kwargs: Any) -> Any:
        kind = type(self)
        for each in kind.__mro__:
            if each.__dict__.get(name) is method:
                kind = each
                _complete(kind)
                break
        return getattr(kind, name)(self, *args, **kwargs)

    return method


_METHODS = {name: _later(name) for name in ("__init__", "__repr__", "__eq__")}
