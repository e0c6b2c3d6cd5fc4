"""The check of imports finds what it is for."""

from __future__ import annotations

import ast
from itertools import pairwise

import pytest
from tools.check_layers import SOURCE, circle, needs, offence_within

ONE_WAY = {
    "m": "",
    "m.low": "import os",
    "m.middle": "from m import low",
    "m.high": "from m.middle import thing\nfrom m import low, other",
}


@pytest.mark.parametrize(
    "back",
    [
        "from m.high import Thing",
        "import m.high",
        "from m import high",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from m.high import Thing",
        "def f():\n    from m.high import Thing",
    ],
)
def test_circles(back: str) -> None:
    def graph(**changed: str) -> dict[str, set[str]]:
        texts = ONE_WAY | {f"m.{name}": text for name, text in changed.items()}
        return needs({name: ast.parse(text) for name, text in texts.items()})

    assert graph()["m.high"] == {"m", "m.low", "m.middle"}
    assert circle(graph()) == []
    found = circle(graph(low=back))
    assert found[0] == found[-1] and set(found) >= {"m.low", "m.high"}
    for module, following in pairwise(found):
        assert following in graph(low=back)[module]


def test_rooms_in_a_room() -> None:
    verify = SOURCE / "store" / "check" / "verify.py"
    assert offence_within(verify, "mqlake.store.message_store") == (
        "store.check may not import mqlake.store.message_store"
    )
    for allowed in (
        "mqlake.store.read_only",
        "mqlake.store.check.info",
        "mqlake.formats.record",
        "mqlake.store",
        "mqlake",  # was an IndexError
    ):
        assert offence_within(verify, allowed) == ""
    assert offence_within(SOURCE / "store" / "recovery.py", "mqlake.store.check.verify") == ""
