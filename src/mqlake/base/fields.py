"""Fields: the metaclass of headers and bodies, whose classes list their fields and nothing else.

class PollingInfoResponseHeader(CommandHeader):        a dataclass with slots, made with keyword arguments
    polling_num: int
"""

from __future__ import annotations

import dataclasses
from typing import Any, dataclass_transform


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Fields(type):
    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> Any:
        made: Any = super().__new__(cls, name, bases, namespace)
        if "__slots__" in namespace:  # dataclass() makes another class, which has them
            return made
        made = dataclasses.dataclass(slots=True, kw_only=True)(made)
        if (cell := namespace.get("__classcell__")) is not None:
            cell.cell_contents = made  # the class that super() means
        return made
