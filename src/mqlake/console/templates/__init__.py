"""The HTML of the console: Jinja templates that escape everything, and what they may call."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from mqlake import __version__
from mqlake.base.clock import now_ms
from mqlake.base.rendering import count_text, size_text, time_text
from mqlake.console import plots

DIRECTORY = Path(__file__).resolve().parent.parent


def path_to(template: str, *parts: object, **query: object) -> str:
    """A path with each part quoted: `path_to("/topics/{}/messages", topic, page=2)`; empty parameters are left out."""
    path = template.format(*(quote(str(part), safe="") for part in parts))
    given = {name.rstrip("_"): value for name, value in query.items() if _is_given(value)}
    return path + ("?" + urlencode(given) if given else "")


def _is_given(value: object) -> bool:
    return value is not None and value is not False and value != ""


def number_text(value: float | None) -> str:
    """12,345; a rate with up to two digits; `–` for what is not known."""
    if value is None:
        return "–"
    if isinstance(value, int) or value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def short_time(timestamp_ms: int) -> str:
    """As time_text, without the offset from UTC; `–` for no time."""
    return time_text(timestamp_ms)[:23] if timestamp_ms > 0 else "–"


@functools.cache
def asset(name: str) -> str:
    """The path of a file of our own, which changes with its content: browsers keep it."""
    content = (DIRECTORY / "static" / name).read_bytes()
    return f"/static/{name}?{hashlib.sha256(content).hexdigest()[:12]}"


class Given(dict[str, str]):
    """The text typed into a form; empty where nothing was."""

    def __missing__(self, name: str) -> str:
        return ""

    def of(self, action: str) -> Given:
        """Returns the values of one of several forms of a page."""
        return self if self["action"] == action else Given()


class _Environment(Environment):
    """`record.keys` is what the record has under that name, not a method of dicts."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment() -> Environment:
    found = _Environment(
        loader=FileSystemLoader(DIRECTORY / "templates"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {
        "asset": asset,
        "path_to": path_to,
        "spark": plots.sparkline,
        "line": plots.line,
        "bar": plots.bar,
        "timeline": plots.timeline,
        "version": __version__,
        "zone": lambda: "UTC" + time_text(now_ms())[23:],
    }
    found.filters |= {
        "size": size_text,
        "time": short_time,
        "exact_time": time_text,
        "number": number_text,
        "count": count_text,
    }
    return found


_templates = _environment()

FIRST = ("base.html", "macros.html", "overview.html", "topics.html", "topic.html")
"""Templates of the pages that people open first."""


def warm_up() -> None:
    """Compiles all templates, so that no page pays for it: 0.1 s each."""
    for name in (*FIRST, *_templates.list_templates(extensions=["html"])):
        _templates.get_template(name)


def render(template: str, data: dict[str, Any], **shared: Any) -> str:
    """The page. `data` is what its query returned; `here(page=2)` is the same page with other parameters."""
    path, query = shared["path"], shared["query"]

    def here(**changes: object) -> str:
        given = {name: value for name, value in (query | changes).items() if _is_given(value)}
        return quote(path) + ("?" + urlencode(given) if given else "")

    return _templates.get_template(template).render(data=data, here=here, **shared)
