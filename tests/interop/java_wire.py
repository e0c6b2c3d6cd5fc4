"""RocketMQ's side of the wire (5.3.3) as a peer: one JVM that encodes, administers and serves at our request.

    with JavaWire(tmp_path) as java:
        java.request("admin.route", namesrv="127.0.0.1:9876", topic="T")

What it does is listed in tests/interop/java/src/main/java/mqlake/wire.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from tests.interop.java_peer import ROCKETMQ_VERSION, TEST_JVM, JavaPeerError, class_options
from tests.waiting import PATIENCE_S

Json = dict[str, Any]


class JavaLines:
    """A JVM that answers requests: a line of JSON each on its stdin, a line each on its stdout."""

    MAIN = ""
    """The Java class."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        jvm: Sequence[str] = TEST_JVM,
        version: str = ROCKETMQ_VERSION,
    ) -> None:
        """Whatever the JVM writes of its own goes into `directory`."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        self.stderr = directory / "wire.stderr"
        command = [
            "java",
            *jvm,
            f"-Duser.home={directory}",
            f"-Djava.io.tmpdir={directory}",
            f"-Dmqlake.peer.log={directory / 'wire.log'}",
            "-Dmqlake.peer.log.level=WARN",
            "-XX:-UsePerfData",
            *class_options(version),
            self.MAIN,
        ]
        with self.stderr.open("ab") as stderr:
            self._process = subprocess.Popen(
                command, cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def request(self, do: str, **fields: Any) -> Json:
        """The answer; JavaPeerError when there was an exception in Java."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise JavaPeerError(f"the JVM ended during {do}:\n{self.stderr.read_text()[-2000:]}")
        answer: Json = json.loads(line)
        if "error" in answer:
            raise JavaPeerError(f"{do}: {answer['error']} (see {self.stderr})")
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b'{"do":"exit"}\n')
            self._process.stdin.close()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JavaWire(JavaLines):
    MAIN = "mqlake.wire.Main"

    def encode(self, kind: str, code: int, **fields: Any) -> bytes:
        """A frame; a `body` is given as bytes."""
        if "body" in fields:
            fields["body"] = base64.b64encode(fields["body"]).decode()
        return base64.b64decode(self.request("encode", type=kind, code=code, **fields)["frame"])

    def decode(self, frame: bytes) -> Json:
        """What Java reads in a frame; the body as bytes or None."""
        answer = self.request("decode", frame=base64.b64encode(frame[4:]).decode())
        body = answer.get("body")
        answer["body"] = None if body is None else base64.b64decode(body)
        return answer
