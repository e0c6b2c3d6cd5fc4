"""The console: what a cluster or a store directory holds, as pages for people, as JSON, and for programs by MCP.

    request ─▶ app (login, CSRF, CSP) ─▶ Page ─▶ query(Ask) ─▶ one dict ─┬─▶ template ─▶ HTML
    MCP tool call ───────────────────────────▶                           └─▶ JSON

`pages` lists every page with its parameters; routes, the OpenAPI document and the MCP tools are made of that list. A
query (`queries`) gets an `Ask` and returns what both the HTML and the JSON show.
"""
