"""The table of settings refuses a key that is taken for RocketMQ's and is not, or the other way round."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from tools import config_table

from mqlake.base.settings import Settings, setting, settings_of
from mqlake.store import config as store_config


@dataclass(frozen=True, kw_only=True)
class Kettle(Settings):
    enable_lmq: bool = setting(False, "RocketMQ's.")
    whistle: bool = setting(False, "Ours.", own=True)
    boil_at: int = setting(100, "Ours, not marked.")
    broker_name: str = setting("", "RocketMQ's, marked as ours.", own=True)
    lite_topic: str = setting("", "Of a later RocketMQ.", own="5.5")


def test_keys_that_are_not_whose_they_seem() -> None:
    """Without this, a setting of ours would be documented as RocketMQ's until the tests against Java run."""
    keys = config_table.keys_of(config_table.BROKER_CONF)
    not_marked, marked = config_table.wrongly_owned(settings_of(Kettle).values(), keys)
    assert not_marked.startswith("boilAt: RocketMQ 5.3.3 has no such key") and "own=True" in not_marked
    assert marked.startswith("brokerName: RocketMQ 5.3.3 has this key") and "remove own" in marked


def test_the_page_is_not_made_with_such_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store_config, "SETTINGS", settings_of(Kettle))
    monkeypatch.setattr(config_table, "page", lambda: pytest.fail("a page was made"))
    assert config_table.main() == 1
    assert capsys.readouterr().out.count("\n") == 2
