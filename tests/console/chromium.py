"""A real Chromium without a window, driven by its DevTools protocol over two pipes: no driver, no port.

fd 3 ◀── {"id": 1, "method": "Page.navigate", ...}\\0
fd 4 ──▶ {"id": 1, "result": ...}\\0   and events, which are kept until somebody looks
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any, Self

from mqlake.base.children import die_with_parent
from tests.parts import needed
from tests.waiting import PATIENCE_S, trying, until


class Chromium:
    """Use it in a `with`. `violations` has what a page was not allowed to do, and errors of its scripts."""

    def __init__(self, profile: Path) -> None:
        command = needed("chromium")
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        # out of the way of 3 and 4
        theirs = [fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 10) for number in (to_read, to_write)]
        os.close(to_read)
        os.close(to_write)
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$0" "$@" 3<&{theirs[0]} 4>&{theirs[1]}',
                command,
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--disable-extensions",
                "--disable-background-networking",
                "--no-first-run",
                "--hide-scrollbars",
                f"--user-data-dir={profile}",
                "--remote-debugging-pipe",
                "about:blank",
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=theirs,
            preexec_fn=die_with_parent(),
        )
        for number in theirs:
            os.close(number)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.violations: list[str] = []
        self._loaded = 0
        target = self.call("Target.getTargets")["targetInfos"]
        page = next(each for each in target if each["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=page["targetId"], flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call(
            "Page.addScriptToEvaluateOnNewDocument",
            source="window.violations = []; addEventListener('securitypolicyviolation', "
            "event => violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));",
        )

    # ------------------------------------------------------------------ the protocol

    def call(self, method: str, **params: Any) -> Any:
        self._number += 1
        number = self._number
        request = {"id": number, "method": method, "params": params}
        if self._session:
            request["sessionId"] = self._session
        os.write(self._write, json.dumps(request).encode() + b"\0")
        for _ in trying("the browser answers"):
            found = self._next(PATIENCE_S)
            if found.get("id") == number:
                break
        assert "error" not in found, f"{method}: {found['error']}"
        return found["result"]

    def _next(self, patience_s: float) -> Any:
        """The next message of the browser; events are noted."""
        deadline = time.monotonic() + patience_s
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._read], [], [], left)[0], "the browser does not answer"
            part = os.read(self._read, 1 << 20)
            assert part, "the browser has ended"
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        found = json.loads(line)
        self._note(found)
        return found

    def _note(self, message: Any) -> None:
        params = message.get("params", {})
        if message.get("method") == "Page.loadEventFired":
            self._loaded += 1
        elif message.get("method") == "Runtime.exceptionThrown":
            self.violations.append(str(params["exceptionDetails"].get("text")))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.violations.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    # ------------------------------------------------------------------ what a person does

    def open(self, url: str) -> None:
        """Returns when the page and its scripts are loaded."""
        self.violations.clear()
        before = self._loaded
        self.call("Page.navigate", url=url)
        self.wait_for_load(before)

    def wait_for_load(self, before: int) -> None:
        while self._loaded == before:
            self._next(PATIENCE_S)
        until(lambda: self.run("document.readyState === 'complete'"), "the page is complete")

    @property
    def loads(self) -> int:
        return self._loaded

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def press(self, *keys: str) -> None:
        for key in keys:
            text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
            common = {"key": key, "text": text} if text else {"key": key}
            if key == "Enter":
                common |= {"windowsVirtualKeyCode": 13, "code": "Enter"}
            self.call("Input.dispatchKeyEvent", type="keyDown", **common)
            self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text: str) -> None:
        self.call("Input.insertText", text=text)

    def resize(self, width: int, height: int) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def scheme(self, name: str) -> None:
        """`light` or `dark`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    def screenshot(self, path: Path) -> None:
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def policy_violations(self) -> list[str]:
        """Of the page that is open."""
        return self.violations + list(self.run("window.violations"))

    # ------------------------------------------------------------------ the end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self._session = ""
            self.call("Browser.close")
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
