"""The MCP server, asked by the protocol's own client over stdin and stdout."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from mqlake.console.ask import Page
from mqlake.console.pages import PAGES
from mqlake.remoting.loop import run
from tests.store.small_store import COUNT, contents, fill


def data(result: Any) -> Any:
    assert not result.is_error, result.content
    assert json.loads(result.content[0].text) == result.structured_content
    return result.structured_content


def test_the_official_client_reads_a_store(tmp_path: Path) -> None:
    # a second to load, and each worker collects all files
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    root = fill(tmp_path / "store")
    before = contents(root)
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "mqlake", "console", "--mcp", "--store", str(root)]
    )

    async def scene() -> None:
        async with Client(stdio_client(command)) as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            assert "store_search" in tools and "list_topics" not in tools  # there is no cluster
            assert all(tool.annotations and tool.annotations.read_only_hint for tool in tools.values())
            assert all(tool.description for tool in tools.values())
            assert data(await client.call_tool("store_info", {"store": "store"}))["messages"] == COUNT
            found = data(await client.call_tool("store_search", {"store": "store", "key": "key-7"}))
            assert [int(row["uniqKey"], 16) for row in found["records"]] == [7]
            wrong = await client.call_tool("store_info", {"store": "sto"})
            assert wrong.is_error and "'store'" in wrong.content[0].text
            wrong = await client.call_tool("store_info", {"store": "store", "rows": 0})
            assert wrong.is_error and "rows" in wrong.content[0].text

    run(scene())
    assert contents(root) == before


def test_every_tool_is_a_page_and_none_changes_anything() -> None:
    from mqlake.console.mcp_server import schema

    pages: list[Page] = [page for page in PAGES if page.tool]
    assert len({page.tool for page in pages}) == len(pages)
    for page in pages:
        assert page.query is not page.action
        assert set(page.path_params) <= set(schema(page)["required"])
