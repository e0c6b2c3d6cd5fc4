"""The settings of access control: RocketMQ's AuthConfig, which stands in the same broker.conf.

Providers and strategies are named by Java class there. Here the local ones are the only ones, so another class is
refused; a cache's size and age do not matter, because what is kept is dropped the moment users or acls change.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from mqlake.auth.sources import SourceList
from mqlake.base.settings import Setting, Settings, attributes_of, setting, settings_of
from mqlake.errors import ConfigError

_AUTHENTICATION = "org.apache.rocketmq.auth.authentication"
_AUTHORIZATION = "org.apache.rocketmq.auth.authorization"
_CLASSES = {
    "authenticationProvider": (f"{_AUTHENTICATION}.provider.DefaultAuthenticationProvider",),
    "authenticationMetadataProvider": (f"{_AUTHENTICATION}.provider.LocalAuthenticationMetadataProvider",),
    "authenticationStrategy": (
        f"{_AUTHENTICATION}.strategy.StatelessAuthenticationStrategy",
        f"{_AUTHENTICATION}.strategy.StatefulAuthenticationStrategy",
    ),
    "authorizationProvider": (f"{_AUTHORIZATION}.provider.DefaultAuthorizationProvider",),
    "authorizationMetadataProvider": (f"{_AUTHORIZATION}.provider.LocalAuthorizationMetadataProvider",),
    "authorizationStrategy": (
        f"{_AUTHORIZATION}.strategy.StatelessAuthorizationStrategy",
        f"{_AUTHORIZATION}.strategy.StatefulAuthorizationStrategy",
    ),
}


@dataclass(frozen=True, slots=True)
class Credentials:
    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.access_key!r})"  # never the secret


@dataclass(frozen=True, kw_only=True)
class AuthConfig(Settings):
    """Raises ConfigError at construction when a value cannot be used."""

    authentication_enabled: bool = setting(False, "Requests must be signed by a user (ACL 2.0).")
    authentication_provider: str = setting("", "RocketMQ's class; only its default is there.")
    authentication_metadata_provider: str = setting(
        "", "RocketMQ's class; only the local one is there, also if it is empty."
    )
    authentication_strategy: str = setting("", "RocketMQ's class; both of its strategies are the same here.")
    authentication_whitelist: str = setting("", "Request codes that need no signature; `,` between.")
    init_authentication_user: str = setting(
        "", 'First super user, made if there is none of that name: `{"username":"…","password":"…"}`.'
    )
    inner_client_authentication_credentials: str = setting(
        "",
        'What this broker signs its own requests with: `{"accessKey":"…","secretKey":"…"}`; also made a super user.',
    )
    authorization_enabled: bool = setting(
        False, "Users may do only what their acls allow; needs authenticationEnabled."
    )
    authorization_provider: str = setting("", "RocketMQ's class; only its default is there.")
    authorization_metadata_provider: str = setting(
        "", "RocketMQ's class; only the local one is there, also if it is empty."
    )
    authorization_strategy: str = setting("", "RocketMQ's class; both of its strategies are the same here.")
    authorization_whitelist: str = setting(
        "", "Request codes that every signed request may use; `,` between."
    )
    migrate_auth_from_v1_enabled: bool = setting(
        False, "Make users and acls of the accounts in plain_acl.yml at the start."
    )
    acl_enable: bool = setting(
        False, "Access control by plain_acl.yml (ACL 1.0, as RocketMQ had it up to 5.3.2)."
    )
    auth_config_path: str = setting(
        "", "Directory of accessControl.jsonl and its key; empty: config below storePathRootDir."
    )
    acl_directory: str = setting(
        "", "Directory of plain_acl.yml and acl/*.yml; empty: $ROCKETMQ_HOME/conf.", own=True
    )
    sync_users_from_master: bool = setting(
        True, "A slave with authenticationEnabled takes over the users and acls of its master.", own=True
    )
    metrics_authentication: bool = setting(
        True,
        "Under authenticationEnabled the metrics need a user's name and password (HTTP Basic).",
        own=True,
    )
    metrics_source_ips: str = setting(
        "", "Addresses and networks that may read metrics; `,` between; empty: all.", own=True
    )
    access_failures_max: int = setting(
        100,
        "Refused requests of one address in a second; a connection with more is closed.",
        unit="requests",
        low=1,
        own=True,
    )
    signed_send_max_age_seconds: int = setting(
        0,
        "Refuse signed sends whose bornTimestamp is further from the broker's time; 0: never.",
        unit="s",
        own=True,
    )
    grpc_signature_max_age_seconds: int = setting(
        86_400,
        "Refuse gRPC requests whose signed x-mq-date-time is further from the broker's time; 0: never.",
        unit="s",
        own=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true: needs authenticationEnabled=true; without signatures anybody could name "
                "any user"
            )
        if self.acl_enable and self.authentication_enabled:
            raise ConfigError(
                "aclEnable=true and authenticationEnabled=true: choose one; migrateAuthFromV1Enabled=true takes the "
                "accounts of plain_acl.yml over"
            )
        for key, allowed in _CLASSES.items():
            given = getattr(self, _attribute(key))
            if given and given not in allowed:
                raise ConfigError(f"{key}={given}: {' or '.join(allowed)} is there")
        SourceList.parse(self.metrics_source_ips, "metricsSourceIps")
        for key in ("authenticationWhitelist", "authorizationWhitelist"):
            self.codes(key)
        self.first_users()

    def codes(self, key: str) -> frozenset[int]:
        """The codes in a white list. ConfigError. Names of gRPC messages are for the proxy (`names`)."""
        return frozenset(int(each) for each in self.names(key) if each.isdigit())

    def names(self, key: str) -> frozenset[str]:
        text: str = getattr(self, _attribute(key))
        return frozenset(each.strip() for each in text.split(",") if each.strip())

    @property
    def guards_broker(self) -> bool:
        """True if a broker asks its clients who they are, in the way of either 5.x or 4.x."""
        return self.authentication_enabled or self.acl_enable

    @property
    def inner_credentials(self) -> Credentials | None:
        """The credentials that this broker signs with; None: it does not sign."""
        value = _object(self.inner_client_authentication_credentials, "innerClientAuthenticationCredentials")
        if not value:
            return None
        access_key, secret_key = value.get("accessKey"), value.get("secretKey")
        if not access_key or not secret_key:
            raise ConfigError("innerClientAuthenticationCredentials: accessKey and secretKey are needed")
        return Credentials(access_key, secret_key, value.get("securityToken") or "")

    def first_users(self) -> list[Credentials]:
        """The users to be made super users if nobody has their name. ConfigError."""
        found = []
        value = _object(self.init_authentication_user, "initAuthenticationUser")
        if value:
            name, password = value.get("username"), value.get("password")
            if not name or not password:
                raise ConfigError("initAuthenticationUser: username and password are needed")
            found.append(Credentials(name, password))
        inner = self.inner_credentials
        return [*found, inner] if inner is not None else found

    @property
    def plain_acl_directory(self) -> str:
        """The directory of plain_acl.yml. ConfigError."""
        home = os.environ.get("ROCKETMQ_HOME")
        if not self.acl_directory and not home:
            raise ConfigError("aclDirectory, or $ROCKETMQ_HOME, must say where plain_acl.yml is")
        return self.acl_directory or os.path.join(str(home), "conf")


def _attribute(key: str) -> str:
    return attributes_of(AuthConfig)[key]


def _object(text: str, key: str) -> Mapping[str, str]:
    """The texts of a JSON object; nothing for an empty text. ConfigError, which does not repeat it: it has a secret."""
    if not text:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{key}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"{key}: an object is needed")
    return {name: each for name, each in value.items() if isinstance(each, str)}


SETTINGS: dict[str, Setting] = settings_of(AuthConfig)
SECRETS = frozenset({"initAuthenticationUser", "innerClientAuthenticationCredentials"})
"""Keys whose values are never shown."""
