"""What every page has: headers, forms that are refused, JSON beside HTML, errors that say what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from mqlake.console.app import ConsoleConfig
from mqlake.console.ask import FORM_MAX
from mqlake.console.pages import PAGES
from mqlake.console.store_files import named
from mqlake.message import MessageExtBrokerInner
from mqlake.store.message_store import open_store
from tests.console.live import Browser, serving
from tests.store.small_store import SETTINGS
from tests.waiting import PATIENCE_S

XSS = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    root: Path = tmp_path_factory.mktemp("app") / "store"
    with open_store(root, SETTINGS) as store:
        put = MessageExtBrokerInner(
            "Hostile", XSS.encode(), XSS, [XSS.replace(" ", "")], properties={XSS: XSS}
        )
        put.born_host = put.store_host = ("127.0.0.1", 1)
        assert store.put_message(put).is_ok
    with serving(ConsoleConfig(stores=named([str(root)]))) as served:
        yield served.browser()


class Scripts(HTMLParser):
    """What a page would run, and where it would load things from."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.inline += [f"{tag} {name}" for name in given if name.startswith("on") or name == "style"]
        if tag == "script" and not given.get("src"):
            self.inline.append("script")
        if tag == "style":
            self.inline.append("style")
        self.sources += [value for name in ("src", "href", "action") if (value := given.get(name))]


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/stores/store/log",
        "/stores/store/record?offset=0",
        "/stores/store/search?text=script",
        "/help",
        "/nothing",
    ],
)
def test_a_page_runs_nothing_but_its_own_files(browser: Browser, path: str) -> None:
    answer = browser.get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    scripts = Scripts()
    scripts.feed(answer.text)
    assert scripts.inline == []
    assert all(source.startswith(("/", "#")) for source in scripts.sources)
    assert "<script>alert" not in answer.text and "<img src=x" not in answer.text


def test_what_is_hostile_is_shown_as_text(browser: Browser) -> None:
    page = browser.get("/stores/store/record", offset=0).text
    assert "&lt;script&gt;alert(1)" in page
    assert browser.data("/stores/store/record", offset=0)["payload"]["text"] == XSS
    page = browser.get("/stores/store/search", text='"><script>alert(3)</script>').text
    assert "<script>alert" not in page and "&lt;script&gt;alert(3)" in page


def test_a_form_from_elsewhere_is_refused(browser: Browser) -> None:
    page = "/stores/store/verify"
    assert browser.ask("POST", page, "").status == 403
    assert browser.ask("POST", page, "csrf=0123").status == 403
    token = browser.get("/session").json["csrf"]
    assert browser.ask("POST", page, f"csrf={token}", Origin="http://evil.example").status == 403
    assert Browser(browser.address).ask("POST", page, f"csrf={token}").status == 403  # without the cookie
    assert browser.ask("POST", page, "", X_CSRF_Token=token).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT"])
@pytest.mark.parametrize(
    "path", ["/stores/store/verify", "/login", "/logout", "/session", "/topics/T/send", "/nothing"]
)
@pytest.mark.parametrize("head", ["Content-Length: 314572800", "Transfer-Encoding: chunked"])
def test_nobody_reads_a_request_of_300_megabytes(browser: Browser, method: str, path: str, head: str) -> None:
    """Not even to throw it away: who sends it is cut off."""
    host, port = browser.address.split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: {browser.address}\r\n{head}\r\n\r\n".encode())
        piece = bytes(1 << 20)
        if "chunked" in head:
            piece = b"100000\r\n" + piece + b"\r\n"
        sent = 0
        try:
            for _ in range(300):
                connection.sendall(piece)
                sent += 1
        except OSError:
            pass
        assert sent < 60


def test_a_form_that_is_too_large_is_refused_in_words(browser: Browser) -> None:
    token = browser.get("/session").json["csrf"]
    body = f"csrf={token}&a=" + "a" * (FORM_MAX - 7 - len(token) - 2)
    assert browser.ask("POST", "/stores/store/verify", body).status == 200
    answer = browser.ask("POST", "/stores/store/verify?format=json", body + "aaa")
    assert answer.status == 413 and f"larger than {FORM_MAX} bytes" in answer.json["error"]
    assert answer.headers.get("connection") is None  # it was read to its end
    answer = browser.ask("POST", "/topics/T/send", body + "aaa")
    assert answer.status == 403  # a message may be larger; this console is read-only


def test_the_cookie_is_for_this_console_only(browser: Browser) -> None:
    header = Browser(browser.address).get("/help").headers["set-cookie"]
    assert "httponly" in header.lower() and "samesite=strict" in header.lower()


def test_another_sites_name_does_not_lead_here(browser: Browser) -> None:
    answer = browser.ask("GET", "/stores", Host="evil.example")
    assert answer.status == 421 and "--host-name" in answer.text


def test_errors_say_what_is_wrong_in_both_forms(browser: Browser) -> None:
    answer = browser.get("/topics", format="json")
    assert answer.status == 400 and "-n" in answer.json["error"]
    answer = browser.get("/stores/store/log", offset="x", format="json")
    assert answer.status == 400 and "offset" in answer.json["error"]
    assert browser.get("/nothing", format="json").json["status"] == 404
    assert browser.get("/stores/store/queues", page=99).status == 200  # the last page


def test_openapi_names_every_page_and_parameter(browser: Browser) -> None:
    document = browser.get("/openapi.json").json
    assert document["paths"].keys() == {page.path for page in PAGES}
    ids = []
    for page in PAGES:
        methods = document["paths"][page.path]
        assert ("post" in methods) == (page.action is not None)
        ids += [method["operationId"] for method in methods.values()]
        found = {each["name"]: each for each in methods["get"]["parameters"]}
        assert set(page.path_params) <= found.keys()
        assert all(found[name]["in"] == "path" and found[name]["required"] for name in page.path_params)
        assert methods["get"]["description"], page.path
    assert len(ids) == len(set(ids))


def test_static_files_are_there_and_nothing_else_is(browser: Browser) -> None:
    for name in ("htmx.min.js", "console.js", "console.css", "icon.svg"):
        assert browser.get(f"/static/{name}").status == 200
    assert browser.get("/static/../app.py").status == 404
    assert not re.search(r"https?://(?!www\.w3\.org)", browser.get("/static/console.css").text)


def test_the_licence_of_what_is_not_ours_comes_along(browser: Browser) -> None:
    notice = (Path(__file__).resolve().parents[2] / "NOTICE").read_text(encoding="utf-8")
    version = re.search(r'version:"([\d.]+)"', browser.get("/static/htmx.min.js").text)
    assert version is not None and f"htmx {version[1]} " in notice
    assert 'PROVIDED "AS IS"' in notice
