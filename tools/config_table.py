"""Writes docs/configuration.md from the settings in the code; --check only says whether it is up to date."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable
from pathlib import Path

from mqlake.base.settings import INT_MAX, Setting
from mqlake.broker import config as broker_config
from mqlake.store.config import CQ_UNIT_SIZE, KEYS_WITHOUT_EFFECT, REFUSED_UNLESS, SETTINGS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

HEAD = """\
# Configuration

<!-- Made by tools/config_table.py from src/mqlake/store/config.py and src/mqlake/broker/config.py; run that to
renew it. -->

Everything is configured with RocketMQ's keys. They come from a Java properties file (`mqlake broker -c broker.conf`)
or one by one from `--set key=value`; the last of a key counts. Sizes in bytes may be written `64k`, `16m`, `1g`. A
broker.conf is one flat file for the broker and its store, so both tables belong to it.

A key that nobody knows is named with the nearest known one: a broker warns of it and starts, the store commands end.

## The broker

"""

TLS = """
TLS has RocketMQ's keys too: `tls.server.mode` (`disabled`, `permissive`, `enforcing`), `tls.server.certPath`,
`tls.server.keyPath`, `tls.server.keyPassword`, `tls.server.trustCertPath` and `tls.server.need.client.auth` (`none`,
`optional`, `require`). Without a certificate there is no TLS.

## The store

Keys marked *fixed* belong to the files on disk: a store is opened with the values it was made with.

"""

REFUSED = """
## Accepted with one value only

| key | value | why |
|---|---|---|
"""

WITHOUT_EFFECT = """
## Accepted without effect

RocketMQ 5.3.3 has these keys too. They are not acted on; they are accepted, and named at the start, so that a
configuration made for the Java broker need not be changed.

Of the broker:

"""

OF_THE_STORE = """

Of the store:

"""


def row(setting: Setting) -> str:
    meaning = setting.doc + allowed(setting) + (" *Fixed.*" if setting.fixed else "")
    default = f"`{setting.default_text}`" if setting.default_text else ""
    kind = setting.type_name.replace(" | ", ", ")
    return f"| `{setting.key}` | {kind} | {default} | {setting.unit} | {meaning} |"


def allowed(setting: Setting) -> str:
    """The range, where it says more than the type does."""
    if isinstance(setting.default, bool) or not isinstance(setting.default, int):
        return ""
    if setting.high > INT_MAX - CQ_UNIT_SIZE:
        return f" At least {setting.low}." if setting.low > 1 else ""
    return f" {setting.low} to {setting.high}."


def table(settings: Iterable[Setting]) -> str:
    lines = ["| key | type | default | unit | meaning |", "|---|---|---|---|---|", *map(row, settings)]
    return "\n".join(lines) + "\n"


def idle(keys: Iterable[str]) -> str:
    return textwrap.fill(", ".join(f"`{key}`" for key in sorted(keys)), 118)


def page() -> str:
    refused = [
        f"| `{key}` | {f'`{value}`' if value else 'none'} | {why} |"
        for key, (value, why) in REFUSED_UNLESS.items()
    ]
    return "".join(
        [
            HEAD,
            table(broker_config.SETTINGS.values()),
            TLS,
            table(SETTINGS.values()),
            REFUSED,
            "\n".join(refused) + "\n",
            WITHOUT_EFFECT,
            idle(broker_config.KEYS_WITHOUT_EFFECT),
            OF_THE_STORE,
            idle(KEYS_WITHOUT_EFFECT) + "\n",
        ]
    )


def main() -> int:
    if "--check" in sys.argv[1:]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            print(f"{PAGE.name}: up to date, {len(SETTINGS) + len(broker_config.SETTINGS)} settings")
            return 0
        print(f"{PAGE} is not what the code says; run: .venv/bin/python tools/config_table.py")
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
