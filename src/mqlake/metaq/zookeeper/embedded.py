"""EmbeddedZookeeper: the real ZooKeeper server as a child process, from the jars that come with PySpark or Debian.

It listens on the loopback only, keeps its data in its own directory, and dies with this process.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import socket
import subprocess
import time

from mqlake.base.children import die_with_parent
from mqlake.errors import ConfigError, MissingPartError, RemotingConnectError
from mqlake.metaq.store.lock import DirectoryLock

HOST = "127.0.0.1"
START_S = 60.0
STOP_S = 10.0
TICK_MS = 1000
HEAP_MB = 128
DEBIAN_JARS = "/usr/share/java"
_NEEDED = (
    "zookeeper*",
    "slf4j-api*",
    "log4j*",
    "netty-*",
    "metrics-core*",
    "snappy-java*",
    "commons-cli*",
    "commons-io*",
)


def find_jars() -> list[str]:
    """The server's class path. MissingPartError if the jars are not found."""
    spec = importlib.util.find_spec("pyspark")
    directories = [os.path.join(os.path.dirname(spec.origin), "jars")] if spec and spec.origin else []
    for directory in [*directories, DEBIAN_JARS]:
        if glob.glob(os.path.join(directory, "zookeeper*.jar")):
            return [
                jar for name in _NEEDED for jar in sorted(glob.glob(os.path.join(directory, f"{name}.jar")))
            ]
    raise MissingPartError(
        "a ZooKeeper server", "pip install 'mqlake[spark]' (or apt-get install libzookeeper-java)"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedZookeeper:
    """Runs from `start` to `stop`. Start it in the main thread: the child dies with the thread that started it."""

    def __init__(self, directory: str, port: int = 0) -> None:
        """`directory` is created if missing; `port` 0: any free one."""
        self.directory = directory
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None
        self._lock: DirectoryLock | None = None

    @property
    def connect_string(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Returns when the server answers.

        MissingPartError, ConfigError (the port is taken), StoreLockedError (the directory is), RemotingConnectError.
        """
        java = shutil.which("java")
        if java is None:
            raise MissingPartError("Java", "apt-get install default-jre-headless", why="ZooKeeper needs it")
        jars = find_jars()
        self.port = self.port or free_port()
        if _asked(self.port, b"ruok") is not None:
            raise ConfigError(
                f"port {self.port} is in use; to use a ZooKeeper that runs there, give --zookeeper HOST:PORT"
            )
        os.makedirs(self.directory, exist_ok=True)
        self._lock = DirectoryLock(self.directory)
        config = os.path.join(self.directory, "zoo.cfg")
        with open(config, "w", encoding="utf-8") as file:
            file.write(
                f"dataDir={self.directory}\nclientPort={self.port}\nclientPortAddress={HOST}\n"
                f"tickTime={TICK_MS}\nmaxClientCnxns=0\nadmin.enableServer=false\n"
                "4lw.commands.whitelist=ruok,srvr\nautopurge.purgeInterval=1\nautopurge.snapRetainCount=3\n"
            )
        options = [f"-Xmx{HEAP_MB}m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dlog4j2.level=error"]
        log_path = os.path.join(self.directory, "zookeeper.out")
        with open(log_path, "wb") as log:
            self._process = subprocess.Popen(
                [
                    java,
                    *options,
                    "-cp",
                    os.pathsep.join(jars),
                    "org.apache.zookeeper.server.ZooKeeperServerMain",
                    config,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                preexec_fn=die_with_parent(),
            )
        deadline = time.monotonic() + START_S
        # it answers "imok" before it serves, but srvr only from then on
        while not (_asked(self.port, b"srvr") or b"").startswith(b"Zookeeper"):
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.stop()
                with open(log_path, "rb") as log:
                    words = log.read()[-600:].decode("utf-8", "replace").strip().splitlines()
                said = words[-1] if words else "it logged nothing"
                what = "has ended" if ended else f"does not answer within {START_S:.0f} s"
                raise RemotingConnectError(self.connect_string, f"ZooKeeper {what}: {said} (see {log_path})")
            time.sleep(0.05)

    def kill(self) -> None:
        """Like a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._ended()

    def _ended(self) -> None:
        self._process = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._ended()


def _asked(port: int, word: bytes) -> bytes | None:
    """ZooKeeper's answer to a four-letter word; None if the port is closed."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(word)
            return connection.recv(16)
    except ConnectionRefusedError:
        return None
    except OSError:
        return b""
