"""ZkSession: a ZooKeeper client with a callback for new sessions.

    connected ─▶ suspended ─▶ connected                 the session survives: nothing is lost
                     └──────▶ lost ─▶ connected         all ephemeral nodes and watches are gone: on_new_session

Callbacks and jobs run one after the other in the session's own thread, so they may call ZooKeeper.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from mqlake.errors import ConfigError, MissingPartError, RemotingConnectError, RemotingError
from mqlake.metaq.config.meta_config import ZKConfig

logger = logging.getLogger(__name__)

RETRY_S = 0.5
RECONNECT_MAX_S = 2.0
"""The longest pause between attempts to reconnect; kazoo's own is up to an hour."""

T = TypeVar("T")


def _kazoo() -> Any:
    try:
        import kazoo.client
        import kazoo.exceptions
        import kazoo.handlers.threading
    except ImportError:
        raise MissingPartError("the ZooKeeper client kazoo", "pip install 'mqlake[zk]'") from None
    return kazoo


def _kazoo_logger() -> logging.Logger:
    """Without kazoo's warnings for each closed connection; `_state_changed` logs what matters."""
    found = logging.getLogger(f"{__name__}.kazoo")
    found.setLevel(logging.ERROR)
    return found


class ZkSession:
    """Connected from the constructor to `close`."""

    def __init__(self, config: ZKConfig) -> None:
        """RemotingConnectError if no server answers within zk.zkConnectionTimeoutMs, ConfigError for a bad address."""
        kazoo = _kazoo()
        hosts, _, chroot = config.zk_connect.partition("/")
        self._errors = kazoo.exceptions
        self._on_new_session: Callable[[], None] | None = None
        self._lost = self._away = False
        self._closing = threading.Event()
        self._timeout_s = config.zk_connection_timeout_ms / 1000
        self._timed_out = kazoo.handlers.threading.KazooTimeoutError
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="metaq-zookeeper")
        try:
            self.client = kazoo.client.KazooClient(
                hosts=hosts,
                timeout=config.zk_session_timeout_ms / 1000,
                connection_retry={"max_tries": -1, "max_delay": RECONNECT_MAX_S},
                logger=_kazoo_logger(),
            )
        except ValueError as error:
            self._worker.shutdown(wait=False)
            raise ConfigError(f"ZooKeeper {hosts!r}: host:port,... is needed: {error}") from None
        self.client.add_listener(self._state_changed)
        try:
            self.client.start(timeout=config.zk_connection_timeout_ms / 1000)
        except kazoo.handlers.threading.KazooTimeoutError:
            self._worker.shutdown(wait=False)
            with contextlib.suppress(Exception):
                self.client.close()
            seconds = config.zk_connection_timeout_ms / 1000
            raise RemotingConnectError(
                config.zk_connect, f"no ZooKeeper answers within {seconds:g} s"
            ) from None
        if chroot.strip("/"):
            self.ensure_path(f"/{chroot.strip('/')}")
            self.client.chroot = f"/{chroot.strip('/')}"

    def on_new_session(self, callback: Callable[[], None]) -> None:
        """`callback` is called after a session was lost and another began, until it does not raise."""
        self._on_new_session = callback

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Runs `job` in the session's thread, after those submitted before."""
        return self._worker.submit(job)

    @property
    def connected(self) -> bool:
        """True if ZooKeeper answers now."""
        return bool(self.client.connected)

    def _state_changed(self, state: str) -> None:
        if state == "CONNECTED" and self._away:
            self._away = False
            logger.warning("connected to ZooKeeper again")
        if state == "LOST":
            self._lost = True
            if not self._closing.is_set():
                logger.warning("the ZooKeeper session is lost")
        elif state == "SUSPENDED" and not self._closing.is_set():
            self._away = True
            logger.warning("the connection to ZooKeeper is lost")
        elif state == "CONNECTED" and self._lost:
            self._lost = False
            with contextlib.suppress(RuntimeError):  # it is being closed
                self._worker.submit(self._renew)

    def _renew(self) -> None:
        while self._on_new_session is not None and not self._closing.is_set() and not self._lost:
            try:
                self._on_new_session()
                return
            except Exception as error:
                logger.error("after a new ZooKeeper session: %s", error)
                self._closing.wait(RETRY_S)

    def close(self) -> None:
        """Ends the session and its ephemeral nodes; calls that wait for a lost connection return."""
        self._closing.set()
        if self.connected:
            self._worker.shutdown()
        with contextlib.suppress(Exception):
            self.client.stop()
            self.client.close()
        self._worker.shutdown()

    # --- nodes; RemotingError when ZooKeeper does not answer within zk.zkConnectionTimeoutMs

    def create_ephemeral(self, path: str, value: bytes) -> bool:
        """False if the node already exists."""
        try:
            self._call(self.client.create_async, path, value, ephemeral=True, makepath=True)
        except self._errors.NodeExistsError:
            return False
        return True

    def put_ephemeral(self, path: str, value: bytes) -> None:
        """Creates the node, or sets its value."""
        if not self.create_ephemeral(path, value):
            self.put(path, value)

    def put_persistent(self, path: str, value: bytes) -> None:
        try:
            self._call(self.client.set_async, path, value)
        except self._errors.NoNodeError:
            self._call(self.client.ensure_path_async, path)
            self._call(self.client.set_async, path, value)

    def put(self, path: str, value: bytes) -> None:
        with contextlib.suppress(self._errors.NoNodeError):
            self._call(self.client.set_async, path, value)

    def ensure_path(self, path: str) -> None:
        self._call(self.client.ensure_path_async, path)

    def read(self, path: str) -> bytes | None:
        """None if there is no such node."""
        try:
            value = self._call(self.client.get_async, path)[0]
        except self._errors.NoNodeError:
            return None
        return bytes(value or b"")

    def is_own(self, path: str) -> bool:
        """True if this session created the node."""
        try:
            stat = self._call(self.client.get_async, path)[1]
        except self._errors.NoNodeError:
            return False
        return bool(self.client.client_id) and stat.ephemeralOwner == self.client.client_id[0]

    def children(self, path: str, watch: Callable[[object], None] | None = None) -> list[str]:
        """Sorted; empty if there is no such node.

        `watch` is called once, in a thread of the client, when they change; a function is registered only once.
        """
        try:
            return sorted(self._call(self.client.get_children_async, path, watch=watch))
        except self._errors.NoNodeError:
            return []

    def delete(self, path: str) -> bool:
        """False if it has children. A missing node is ignored."""
        try:
            self._call(self.client.delete_async, path)
        except self._errors.NoNodeError:
            pass
        except self._errors.NotEmptyError:
            return False
        return True

    def _call(self, function: Callable[..., Any], path: str, *args: Any, **options: Any) -> Any:
        try:
            return function(path, *args, **options).get(timeout=self._timeout_s)
        except (self._errors.NoNodeError, self._errors.NodeExistsError, self._errors.NotEmptyError):
            raise
        except self._timed_out:
            raise RemotingError(f"ZooKeeper, {path}: no answer within {self._timeout_s:g} s") from None
        except (self._errors.KazooException, OSError) as error:
            raise RemotingError(f"ZooKeeper, {path}: {error or type(error).__name__}") from error
