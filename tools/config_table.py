"""Writes docs/configuration.md from the settings in the code; --check only says whether it is up to date.

Both fail when a setting's `own` contradicts rocketmq_keys.txt, which has the keys of RocketMQ 5.3.3.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Container, Iterable
from pathlib import Path

from mqlake.auth import config as auth_config
from mqlake.base import keys_since_5_4
from mqlake.base.rocketmq_keys import AUTH_KEYS, BROKER_KEYS, NAMESRV_KEYS, REMOTING_KEYS, STORE_KEYS
from mqlake.base.settings import INT_MAX, Setting, UnusedKey
from mqlake.broker import config as broker_config
from mqlake.namesrv import config as namesrv_config
from mqlake.store import config as store_config

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.prose import wrapped  # noqa: E402

PAGE = ROOT / "docs" / "configuration.md"
ROCKETMQ_KEYS = Path(__file__).with_name("rocketmq_keys.txt")
BROKER_CONF = {"BrokerConfig", "MessageStoreConfig", "NettyServerConfig", "NettyClientConfig", "AuthConfig"}
NAMESRV_CONF = {"NamesrvConfig", "NettyServerConfig", "NettyClientConfig"}
"""The classes of RocketMQ whose keys a broker.conf and a namesrv.conf have."""

HEAD = """\
# Configuration

<!-- Made by tools/config_table.py from broker/config.py, store/config.py, auth/config.py, namesrv/config.py and
base/rocketmq_keys.py under src/mqlake; run that to renew it. -->

Everything is configured with RocketMQ's keys, and some of mqlake's own, which are marked. They come from a Java
properties file (`mqlake broker -c broker.conf`) or one by one from `--set key=value`; the last of a key counts. Sizes
in bytes may be written `64k`, `16m`, `1g`. A broker.conf is one flat file for the broker and its store, so both tables
belong to it.

Every key of RocketMQ 5.3.3, 5.4 and 5.5 is known: those below act, others are accepted
[without effect](#accepted-without-effect), and those that it would be dangerous to ignore are [refused](#refused). An
unknown key in a file is a warning with the nearest known key; in `--set` it is an error, and so it is
where it looks like a misspelt key of durability, such as `flushDiskType`.

## The broker

"""

TLS = """
TLS has RocketMQ's keys too: `tls.server.mode` (`disabled`, `permissive`, `enforcing`), `tls.server.certPath`,
`tls.server.keyPath`, `tls.server.keyPassword`, `tls.server.trustCertPath` and `tls.server.need.client.auth` (`none`,
`optional`, `require`). Without a certificate there is no TLS. With `tls.enable=true` a broker calls its name servers
with TLS; `tls.client.certPath`, `tls.client.keyPath`, `tls.client.trustCertPath` and `tls.client.authServer` belong to
that. `tls.config.file` and `tls.client.keyPassword` are refused.

## The store

Keys marked *fixed* belong to the files on disk: a store is opened with the values it was made with.

"""

AUTH = """
## Access control

In a broker.conf or a namesrv.conf; see [access-control.md](access-control.md). They cannot be changed at run time.

"""

NAMESRV = """
## The name server

In a namesrv.conf, `mqlake namesrv -c namesrv.conf`, with the keys of TLS as above.

"""

REFUSED = """
## Refused

To ignore these keys would endanger data or access. So nothing starts with them, and they cannot be set at run time. The
value that asks for nothing is accepted.

| key | accepted | why, and what to do |
|---|---|---|
"""

WITHOUT_EFFECT = """
## Accepted without effect

RocketMQ has these keys too. They are accepted with any value and named at the start, so that a configuration made
for the Java broker need not be edited. `getBrokerConfig` lists them with Java's defaults.
"""


def row(setting: Setting) -> str:
    meaning = setting.doc + allowed(setting) + (" *Fixed.*" if setting.fixed else "")
    if setting.own:
        meaning += f" *From RocketMQ {setting.later}.*" if setting.later else " *Not RocketMQ's.*"
    default = f"`{setting.default_text}`" if setting.default_text else ""
    kind = setting.type_name.replace(" | ", ", ")
    return f"| `{setting.key}` | {kind} | {default} | {setting.unit} | {meaning} |"


def allowed(setting: Setting) -> str:
    """The range, where it says more than the type does."""
    if isinstance(setting.default, bool) or not isinstance(setting.default, int):
        return ""
    if setting.high > INT_MAX - store_config.CQ_UNIT_SIZE:
        return f" At least {setting.low}." if setting.low > 1 else ""
    return f" {setting.low} to {setting.high}."


def table(settings: Iterable[Setting]) -> str:
    lines = ["| key | type | default | unit | meaning |", "|---|---|---|---|---|", *map(row, settings)]
    return "\n".join(lines) + "\n"


TABLES = {
    "Of the broker": BROKER_KEYS,
    "Of its access control": AUTH_KEYS,
    "Of the store": STORE_KEYS,
    "Of the broker, from 5.4 on": keys_since_5_4.BROKER_KEYS,
    "Of the store, from 5.4 on": keys_since_5_4.STORE_KEYS,
    "Of connections": REMOTING_KEYS,
    "Of the name server": NAMESRV_KEYS,
}


def unused(refused: bool) -> dict[str, list[UnusedKey]]:
    return {name: [key for key in keys.values() if key.refused is refused] for name, keys in TABLES.items()}


def refused() -> str:
    return "".join(
        f"| `{known.key}` | {f'`{known.default_text}`' if known.default_text else 'none'} | {known.why}. |\n"
        for keys in unused(refused=True).values()
        for known in keys
    )


def without_effect() -> str:
    lines = []
    for name, keys in unused(refused=False).items():
        lines.append(f"\n{name}:\n")
        by_reason: dict[str, list[str]] = {}
        for known in keys:
            by_reason.setdefault(known.why, []).append(known.key)
        for why, names in by_reason.items():
            text = f"- {why} {', '.join(f'`{key}`' for key in names)}."
            lines.append(textwrap.fill(text, 118, subsequent_indent="  ", break_long_words=False))
    return "\n".join(lines) + "\n"


def page() -> str:
    text = "".join(
        [
            HEAD,
            table(broker_config.SETTINGS.values()),
            TLS,
            table(store_config.SETTINGS.values()),
            AUTH,
            table(auth_config.SETTINGS.values()),
            NAMESRV,
            table(namesrv_config.SETTINGS.values()),
            REFUSED,
            refused(),
            WITHOUT_EFFECT,
            without_effect(),
        ]
    )
    return wrapped(text)


def keys_of(classes: Container[str]) -> set[str]:
    """The keys that these classes of RocketMQ 5.3.3 have."""
    rows = (line.split() for line in ROCKETMQ_KEYS.read_text(encoding="utf-8").splitlines() if line[0] != "#")
    return {key for kind, key in rows if kind in classes}


def wrongly_owned(settings: Iterable[Setting], rocketmqs: Container[str]) -> list[str]:
    """A sentence for each setting that is taken for RocketMQ's and is not, or the other way round."""
    missing = "RocketMQ 5.3.3 has no such key: correct its name, or mark the field with own=True"
    needless = "RocketMQ 5.3.3 has this key: remove own from the field, or choose another name"
    return [
        f"{known.key}: {needless if known.own else missing}"
        for known in settings
        if known.own is (known.key in rocketmqs)
    ]


def main() -> int:
    of_brokers = {**broker_config.SETTINGS, **store_config.SETTINGS, **auth_config.SETTINGS}
    faults = wrongly_owned(of_brokers.values(), keys_of(BROKER_CONF))
    faults += wrongly_owned(namesrv_config.SETTINGS.values(), keys_of(NAMESRV_CONF))
    if faults:
        print("\n".join(faults))
        return 1
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            print(f"{PAGE.name}: up to date")
            return 0
        print(f"{PAGE} is not what the code says; run: .venv/bin/python tools/config_table.py")
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
