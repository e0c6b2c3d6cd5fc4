"""The OpenAPI document of the console, made of its pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mqlake import __version__
from mqlake.console.ask import Page, Param

FORMAT = {
    "name": "format",
    "in": "query",
    "required": True,
    "description": "`json`; without it the answer is the page itself.",
    "schema": {"type": "string", "enum": ["json"]},
}


def document(pages: Sequence[Page]) -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for page in pages:
        methods: dict[str, Any] = {"get": _get(page)}
        if page.action is not None:
            methods["post"] = _post(page)
        paths[page.path] = methods
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "mqlake console",
            "version": __version__,
            "description": "What the console's pages show, as JSON. A POST needs the cookie and the token that "
            "/session?format=json gives: the token in the header X-CSRF-Token.",
        },
        "paths": paths,
    }


def _parameter(page: Page, param: Param) -> dict[str, Any]:
    in_path = param.name in page.path_params
    return {
        "name": param.name,
        "in": "path" if in_path else "query",
        "required": in_path or param.required,
        "description": param.help,
        "schema": {"type": param.kind},
    }


def _get(page: Page) -> dict[str, Any]:
    return {
        "summary": page.title,
        "description": (page.query.__doc__ or "").strip(),
        "operationId": page.tool or page.query.__name__,
        "parameters": [*(_parameter(page, param) for param in page.params), FORMAT],
        "responses": _responses(),
    }


def _post(page: Page) -> dict[str, Any]:
    assert page.action is not None
    fields = {param.name: {"type": param.kind, "description": param.help} for param in page.form}
    needed = [param.name for param in page.form if param.required]
    schema: dict[str, Any] = {"type": "object", "properties": fields}
    if needed:
        schema["required"] = needed
    return {
        "summary": page.title,
        "description": (page.action.__doc__ or "").strip(),
        "operationId": page.action.__name__,
        "parameters": [
            *(_parameter(page, each) for each in page.params if each.name in page.path_params),
            FORMAT,
        ],
        "requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": schema}}},
        "responses": _responses(),
    }


def _responses() -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    problem = {"type": "object", "properties": {"error": {"type": "string"}}}
    return {
        "200": {"description": "What the page shows.", "content": content},
        "default": {"description": "Why not.", "content": {"application/json": {"schema": problem}}},
    }
