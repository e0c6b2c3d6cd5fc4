"""Builds the container image and tries it as docs/deploy.md runs it; every step is a line.

    python tools/try_image.py [--engine podman] [--image mqlake] [--no-build]

With a read-only root and published ports: who it runs as, what it may write, its health check, messages sent and read
from outside, a stop, a kill, and the messages still being there. The engine is docker, podman, or a command like them.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
USER = 10001
MB_MAX = 200
LIMIT_S = 120.0


class Trial:
    def __init__(self, engine: str, image: str) -> None:
        self.engine, self.image = engine, image
        self.name = f"mqlake-trial-{time.time_ns():x}"
        self.namesrv, self.broker, self.metrics = free_ports(3)

    def run(self, *arguments: str, stdin: str = "") -> str:
        """Of the engine. SystemExit with what it said if it fails."""
        return output(self.engine, *arguments, stdin=stdin)

    def mqlake(self, *arguments: str, stdin: str = "") -> str:
        """Of this machine, outside of the container."""
        where = f"127.0.0.1:{self.namesrv}"
        return output(sys.executable, "-m", "mqlake", arguments[0], "-n", where, *arguments[1:], stdin=stdin)

    def inside(self, script: str) -> str:
        return self.run("exec", self.name, "sh", "-c", script).strip()

    # ------------------------------------------------------------------ steps

    def build(self) -> str:
        self.run("build", "-f", str(ROOT / "deploy" / "Dockerfile"), "-t", self.image, str(ROOT))
        return self.image

    def size(self) -> str:
        found = int(self.run("image", "inspect", "--format", "{{.Size}}", self.image)) / 1e6
        assert found <= MB_MAX, f"{found:.0f} MB, more than {MB_MAX}"
        return f"{found:.0f} MB"

    def start(self) -> str:
        ports = (self.namesrv, self.broker, self.metrics)
        published = [part for port in ports for part in ("-p", f"127.0.0.1:{port}:{port}")]
        volumes = ["-v", f"{self.name}-data:/data"]
        serve = [
            "serve",
            "--host",
            "0.0.0.0",
            "--advertise",
            "127.0.0.1",
            "--store",
            "/data",
            "--grpc-port",
            "-1",
        ]
        serve += ["--namesrv-port", str(self.namesrv), "--port", str(self.broker)]
        settings = {
            "metricsExporterType": "PROM",
            "metricsPromExporterHost": "0.0.0.0",
            "metricsPromExporterPort": str(self.metrics),
        }
        serve += [f"--set={key}={value}" for key, value in settings.items()]
        limits = ["--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"]
        self.run("run", "-d", "--name", self.name, *limits, *published, *volumes, self.image, *serve)
        return self.until_ready()

    def until_ready(self) -> str:
        began = time.monotonic()
        while time.monotonic() - began < LIMIT_S:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/ready", timeout=5) as answer:
                    return f"{answer.read().decode().strip()} after {time.monotonic() - began:.1f} s"
            except OSError:
                time.sleep(0.2)
        raise SystemExit(f"not ready after {LIMIT_S:.0f} s:\n{self.run('logs', self.name)}")

    def user(self) -> str:
        found = self.inside("id -u; grep -E 'CapEff|CapPrm' /proc/1/status")
        assert found.splitlines()[0] == str(USER) and found.count("0" * 16) == 2, found
        return f"uid {USER}, no capability"

    def writes(self) -> str:
        """To its volume and /tmp alone."""
        found = self.inside(
            "for d in / /opt/mqlake /etc /data /tmp; do touch $d/trial 2>/dev/null && echo $d; done"
        )
        assert found.split() == ["/data", "/tmp"], found
        return " ".join(found.split())

    def health(self) -> str:
        """Runs what the image has as its health check."""
        test = json.loads(self.run("inspect", "--format", "{{json .Config.Healthcheck}}", self.name))["Test"]
        assert test[0] == "CMD", test
        command = [part.replace(":5557/", f":{self.metrics}/") for part in test[1:]]
        self.run("exec", self.name, *command)
        return "passes"

    def send(self) -> str:
        return self.mqlake("produce", "Orders", stdin="1 apple\n2 pears\n").strip() or "2 messages sent"

    def receive(self) -> str:
        found = self.mqlake("consume", "Orders", "--exit-at-end").split("\n")
        assert sorted(filter(None, found)) == ["1 apple", "2 pears"], found
        return "both messages"

    def stop(self) -> str:
        self.run("stop", "-t", "60", self.name)
        status = self.run("inspect", "--format", "{{.State.ExitCode}}", self.name).strip()
        assert status == "0", status
        self.run("start", self.name)
        return f"status {status}, again {self.until_ready()}"

    def kill(self) -> str:
        self.run("kill", self.name)
        self.run("wait", self.name)
        self.run("start", self.name)
        return f"again {self.until_ready()}"

    def remove(self) -> None:
        subprocess.run([self.engine, "rm", "-f", self.name], capture_output=True, check=False)
        command = [self.engine, "volume", "rm", "-f", f"{self.name}-data"]
        subprocess.run(command, capture_output=True, check=False)


def output(*command: str, stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def free_ports(count: int) -> list[int]:
    """So far apart that the ports a broker derives from its own do not meet."""
    listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in listening]
    for each in listening:
        each.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", default="docker", help="docker, podman or a command like them")
    parser.add_argument("--image", default="mqlake", help="name of the image")
    parser.add_argument("--no-build", action="store_true", help="take the image as it is")
    given = parser.parse_args()
    trial = Trial(given.engine, given.image)
    steps: list[tuple[str, Callable[[], str]]] = [] if given.no_build else [("build", trial.build)]
    steps += [("size", trial.size), ("start", trial.start), ("user", trial.user), ("writes to", trial.writes)]
    steps += [
        ("health check", trial.health),
        ("send from outside", trial.send),
        ("read from outside", trial.receive),
    ]
    steps += [("stop and start", trial.stop), ("after the stop", trial.receive)]
    steps += [("kill and start", trial.kill), ("after the kill", trial.receive)]
    try:
        for name, step in steps:
            began = time.monotonic()
            said = step()
            print(f"ok    {name}: {said} ({time.monotonic() - began:.1f} s)", flush=True)
    finally:
        trial.remove()


if __name__ == "__main__":
    main()
