"""The documentation as a site: `make site` builds dist/site from docs/*.md and the docstrings of what programs import.

The pages are those that a reader of the repository sees; docs/README.md is the first one, and its tables, in their
order, are the table of contents. A link that leads out of docs/ leads into the repository where MQLAKE_URL names it
(https://host/owner/mqlake), and is its text otherwise. MQLAKE_VERSIONS (0.1.0=/0.1.0/ 0.2.0=/0.2.0/) lists the
versions that the site offers beside this one.
"""

from __future__ import annotations

import os
import re
from typing import Any

import mqlake

project = "mqlake"
version = release = mqlake.__version__
copyright = "the mqlake authors; Apache License 2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
exclude_patterns = ["site/_*"]
myst_heading_anchors = 4
nitpicky = False
autodoc_typehints = "signature"
default_role = "code"
highlight_language = "text"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

html_theme = "furo"
html_title = f"mqlake {release}"
html_show_sourcelink = False
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "versions.html",
        "sidebar/scroll-end.html",
    ]
}
html_context = {
    "versions": [tuple(each.split("=", 1)) for each in os.environ.get("MQLAKE_VERSIONS", "").split()]
}

REPOSITORY = os.environ.get("MQLAKE_URL", "").rstrip("/")
API = ["api-client", "api-lake", "api-spark"]
_OUTSIDE = re.compile(r"(?<!!)\[([^\]]+)\]\(\.\./([^)\s]+)\)")
_ITEM = re.compile(r"([a-z][a-z0-9_]*): (.+)")
_PAGE = re.compile(r"\]\(([a-z0-9-]+)\.md\)")


def contents(readme: str) -> str:
    """The toctrees of the first page: a caption and its pages for each of its sections."""
    trees = []
    seen: set[str] = set()
    for section in readme.split("\n## ")[1:]:
        pages = [page for page in _PAGE.findall(section) if page not in seen]
        seen.update(pages)
        trees.append((section.partition("\n")[0], pages))
    trees.append(("API", [f"site/{page}" for page in API]))
    return "\n".join(
        "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])
        for caption, pages in trees
    )


def _read(_app: object, docname: str, source: list[str]) -> None:
    if docname == root_doc:
        source[0] += "\n" + contents(source[0])
    to = rf"[\1]({REPOSITORY}/blob/main/\2)" if REPOSITORY else r"\1"
    source[0] = _OUTSIDE.sub(to, source[0])


def _draw(_app: object, _what: str, _name: str, _object: object, _options: object, lines: list[str]) -> None:
    """Keeps what is indented in a docstring (drawings, tables) as it is; makes `name: text` lines a list."""
    drawn: list[str] = []
    in_list = False
    for line in lines:
        if (item := _ITEM.fullmatch(line)) and (in_list or not drawn or not drawn[-1]):
            in_list = True
            line = f":{item[1]}: {item[2]}"
        elif not line:
            in_list = False
        elif (
            line.startswith("    ") and not in_list and (not drawn or not (drawn[-1] or _is_indented(drawn)))
        ):
            drawn += ["::", ""]
        drawn.append(line)
    lines[:] = drawn


def _is_indented(drawn: list[str]) -> bool:
    """True if the last line with text belongs to a drawing."""
    last = next((line for line in reversed(drawn) if line), "")
    return last.startswith("    ") or last == "::"


def setup(app: Any) -> None:
    app.connect("source-read", _read)
    app.connect("autodoc-process-docstring", _draw)
