"""TLS: its configuration, and the server's side of it without I/O.

A TLS client begins with byte 0x16, a frame with 0x00 (frames are shorter than 16 MiB + 1), so one port serves
both: the first byte decides.

    disabled     TLS clients are closed
    permissive   both kinds of clients are served
    enforcing    clients without TLS are closed
"""

from __future__ import annotations

import dataclasses
import enum
import logging
import os
import ssl
import time
from collections.abc import Callable, Iterable, Mapping

from mqlake.base.settings import KnownKeys
from mqlake.errors import ConfigError, NotThereError, UnknownKeyError

logger = logging.getLogger(__name__)

TLS_FIRST_BYTE = 0x16
LOOK_S = 1.0
"""Time between two looks at the files of a server."""


class TlsMode(enum.Enum):
    DISABLED = "disabled"
    PERMISSIVE = "permissive"
    ENFORCING = "enforcing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TlsConfig:
    """PEM files by path. Without a certificate there is no TLS, whatever the mode."""

    mode: TlsMode = TlsMode.PERMISSIVE
    cert_path: str = ""
    key_path: str = ""
    key_password: str = ""
    trust_cert_path: str = ""
    """Certificates that must have signed a client's certificate."""
    client_auth: str = "none"
    """A client's certificate: none, optional or require."""
    enable: bool = False
    """True if this process uses TLS to call other servers, as a broker its name servers."""
    auth_server: bool = False
    """True if it then requires a certificate that names the address it calls."""
    client_cert_path: str = ""
    client_key_path: str = ""
    client_trust_cert_path: str = ""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> TlsConfig:
        """From RocketMQ's `tls.*` keys; other keys are left alone. ConfigError."""
        mode = properties.get("tls.server.mode", "permissive").strip().lower()
        if mode not in {known.value for known in TlsMode}:
            raise ConfigError(f"tls.server.mode is {mode!r}: it can be disabled, permissive or enforcing")
        client_auth = properties.get("tls.server.need.client.auth", "none").strip().lower()
        if client_auth not in _CLIENT_AUTH:
            raise ConfigError(
                f"tls.server.need.client.auth is {client_auth!r}: it can be none, optional or require"
            )
        return cls(
            mode=TlsMode(mode),
            cert_path=properties.get("tls.server.certPath", ""),
            key_path=properties.get("tls.server.keyPath", ""),
            key_password=properties.get("tls.server.keyPassword", ""),
            trust_cert_path=properties.get("tls.server.trustCertPath", ""),
            client_auth=client_auth,
            enable=_flag(properties, "tls.enable"),
            auth_server=_flag(properties, "tls.client.authServer"),
            client_cert_path=properties.get("tls.client.certPath", ""),
            client_key_path=properties.get("tls.client.keyPath", ""),
            client_trust_cert_path=properties.get("tls.client.trustCertPath", ""),
        )


def read_tls(properties: Mapping[str, str], keys: KnownKeys) -> tuple[TlsConfig, list[str]]:
    """The TLS settings in a properties file, and remarks on all of its keys; `keys` knows those that are not `tls.*`.

    Raises ConfigError for a bad value, and for a key that is dangerous to ignore.
    """
    tls = {key: value for key, value in properties.items() if key.startswith("tls.")}
    remarks = keys.remarks({key: value for key, value in properties.items() if key not in tls})
    remarks += _remarks_on_keys(tls)
    config = TlsConfig.from_properties(tls)
    if config.client_auth == "require" and config.cert_path and config.mode is TlsMode.PERMISSIVE:
        remarks.append(
            "tls.server.need.client.auth=require: clients without TLS are served all the same; "
            "tls.server.mode=enforcing refuses them"
        )
    return config, remarks


def _flag(properties: Mapping[str, str], key: str) -> bool:
    text = properties.get(key, "").strip().lower()
    if text not in ("true", "false", ""):
        raise ConfigError(f"{key} is {text!r}: it can be true or false")
    return text == "true"


_ACTED_ON = """
tls.enable tls.server.mode tls.server.certPath tls.server.keyPath tls.server.keyPassword tls.server.trustCertPath
tls.server.need.client.auth tls.client.authServer tls.client.certPath tls.client.keyPath tls.client.trustCertPath
"""
_WITHOUT_EFFECT = frozenset({"tls.server.authClient", "tls.test.mode.enable"})
"""A client's certificate is always verified when one is asked for, and none is made up for tests."""
_REFUSED = {
    "tls.config.file": "write its keys into the broker.conf or namesrv.conf",
    "tls.client.keyPassword": "a client's key with a password is not supported; use one without",
}
KEYS = frozenset(_ACTED_ON.split()) | _WITHOUT_EFFECT | _REFUSED.keys()
"""The keys of RocketMQ's TlsSystemConfig."""


def _remarks_on_keys(keys: Iterable[str]) -> list[str]:
    """A sentence for each `tls.*` key that is unknown or without effect.

    Raises ConfigError for a key that is dangerous to ignore.
    """
    remarks = []
    for key in keys:
        if key in _REFUSED:
            raise ConfigError(f"{key}: {_REFUSED[key]}")
        if key in _WITHOUT_EFFECT:
            remarks.append(f"without effect here: {key}")
        elif key not in KEYS:
            remarks.append(str(UnknownKeyError(key, KEYS)))
    return remarks


_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "require": ssl.CERT_REQUIRED,
}


def server_context(config: TlsConfig) -> ssl.SSLContext | None:
    """The server's context, None when there is no TLS. ConfigError when a file cannot be used, NotThereError."""
    if config.mode is TlsMode.DISABLED:
        return None
    if not config.cert_path or not config.key_path:
        if config.mode is TlsMode.ENFORCING:
            raise ConfigError(
                "tls.server.mode is enforcing, which needs tls.server.certPath and tls.server.keyPath"
            )
        if config.client_auth == "require":
            raise ConfigError(
                "tls.server.need.client.auth is require, which needs tls.server.certPath and tls.server.keyPath: "
                "without them there is no TLS, and every client would be served"
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(config.cert_path, config.key_path, config.key_password or None)
        if config.trust_cert_path:
            context.load_verify_locations(config.trust_cert_path)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(error, config.cert_path, config.key_path, config.trust_cert_path) from error
    context.verify_mode = _CLIENT_AUTH[config.client_auth]
    return context


def _unusable(error: OSError, *paths: str) -> ConfigError:
    """Returns the error for files some of which may be empty names; it names those that are not there, if that is
    it."""
    named = [path for path in paths if path]
    if missing := [path for path in named if not os.path.exists(path)]:
        return NotThereError(f"TLS cannot use {', '.join(missing)}: No such file or directory")
    return ConfigError(f"TLS cannot use {', '.join(named)}: {error}")


class ServerTls:
    """The server's context, made again when a file of it has changed: a new certificate needs no restart.

    `current` is for each new connection; existing ones keep what they have. A file that cannot be used is reported, and
    the certificates of before still serve.
    """

    def __init__(self, config: TlsConfig, clock: Callable[[], float] = time.monotonic) -> None:
        """ConfigError when a file cannot be used."""
        self._config = config
        self._clock = clock
        self._seen = self._identities()
        self._looked_at = clock()
        self.context = server_context(config)

    def current(self) -> ssl.SSLContext | None:
        now = self._clock()
        if self.context is not None and now - self._looked_at >= LOOK_S:
            self._looked_at = now
            self._reload_if_changed()
        return self.context

    def _reload_if_changed(self) -> None:
        found = self._identities()
        if found == self._seen:
            return
        self._seen = found
        try:
            self.context = server_context(self._config)
            logger.info("TLS uses the changed files of %s", self._config.cert_path)
        except ConfigError as error:
            logger.error("%s; the certificates of before still serve", error)

    def _identities(self) -> list[tuple[int, int, int] | None]:
        config = self._config
        return [
            identity(path) if path else None
            for path in (config.cert_path, config.key_path, config.trust_cert_path)
        ]


def identity(path: str) -> tuple[int, int, int] | None:
    """A fingerprint that differs when a file was written again or replaced; None if it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size)


def client_context(
    *,
    trust_cert_path: str = "",
    cert_path: str = "",
    key_path: str = "",
    verify: bool = True,
) -> ssl.SSLContext:
    """A client's context. `verify=False` takes any certificate, as RocketMQ's clients do by default.

    Brokers are called by address, so a verified certificate must name the address that is called. ConfigError when a
    file cannot be used, NotThereError.
    """
    try:
        context = ssl.create_default_context(cafile=trust_cert_path or None)
        if cert_path:
            context.load_cert_chain(cert_path, key_path or None)
    except (OSError, ssl.SSLError) as error:
        raise _unusable(error, trust_cert_path, cert_path, key_path) from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


_ANOTHER_NAME = (62, 64)
"""OpenSSL's X509_V_ERR_HOSTNAME_MISMATCH and X509_V_ERR_IP_ADDRESS_MISMATCH."""
_UNKNOWN_SIGNER = (18, 19, 20, 21)
"""A certificate that signed itself, alone or at the end of a chain, and issuers that are not there."""


def why_unaccepted(host: str, error: ssl.SSLCertVerificationError) -> str:
    """Why the certificate of the server that was called as `host` is not accepted, and what to do."""
    if error.verify_code in _ANOTHER_NAME:
        kind = "DNS" if error.verify_code == _ANOTHER_NAME[0] else "IP"
        return (
            f"certificate verify failed: it is not made out to {host}; "
            f"make one with subjectAltName={kind}:{host}, or call the server by a name that it has"
        )
    if error.verify_code in _UNKNOWN_SIGNER:
        return (
            f"certificate verify failed: {error.verify_message}; "
            "trust the certificate itself or the authority that signed it (--tls-ca)"
        )
    return f"certificate verify failed: {error.verify_message}"


def caller_context(config: TlsConfig) -> ssl.SSLContext | None:
    """The context for calls to other servers, None for no TLS. ConfigError."""
    if not config.enable:
        return None
    return client_context(
        trust_cert_path=config.client_trust_cert_path,
        cert_path=config.client_cert_path,
        key_path=config.client_key_path,
        verify=config.auth_server,
    )


class TlsPipe:
    """The server's side of one TLS connection: bytes in, plain bytes out, and the other way. No I/O.

    After `ssl.SSLError` the connection cannot continue; `outgoing` then returns the alert to send.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "_shaken")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._shaken = False

    def feed(self, data: memoryview) -> None:
        """Bytes from the peer."""
        self._incoming.write(data)

    def read_into(self, buffer: memoryview) -> int:
        """Decrypts into `buffer`; returns the number of bytes, 0 if more must come first, -1 if the peer has closed."""
        try:
            if not self._shaken:
                self._object.do_handshake()
                self._shaken = True
            count = int(self._object.read(len(buffer), buffer))  # with a buffer it is a number
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except ssl.SSLZeroReturnError:
            return -1
        return count if count else -1

    def write(self, data: bytes) -> None:
        """Encrypts bytes for the peer. Call it only after its first frame, when the handshake is over."""
        view = memoryview(data)
        while view:
            view = view[self._object.write(view) :]

    def outgoing(self) -> bytes:
        """Encrypted bytes to send."""
        return self._outgoing.read()
