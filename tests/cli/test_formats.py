"""formats: YAML that any reader understands; -o and --watch at a real listing."""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from mqlake.cli.formats import is_wide, is_yaml, printed_as, yaml_text
from mqlake.cli.main import cli
from tests.interop.brokers import MqlakeBroker
from tests.waiting import PATIENCE_S

TEXTS = st.text(max_size=12) | st.sampled_from(
    ["yes", "1e3", "0x10", "- a", "a: b", "#", "1:30", "2026-01-02", ".inf"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
)


@given(VALUES)
def test_yaml_means_the_same(value: object) -> None:
    read = yaml.safe_load(yaml_text(value))
    if isinstance(value, float):
        assert math.isclose(float(read), value)  # 1e+16 is a text to YAML 1.1
    elif not contains_float(value):
        assert read == value


def contains_float(value: object) -> bool:
    if isinstance(value, dict):
        return any(map(contains_float, value.values()))
    return isinstance(value, float) or (isinstance(value, list) and any(map(contains_float, value)))


def test_blocks() -> None:
    value = [{"name": "a", "queues": [1, 2], "no": {}}, []]
    assert yaml_text(value) == '- name: a\n  queues:\n    - 1\n    - 2\n  "no": {}\n- []\n'


def test_a_format_counts_inside_of_its_with() -> None:
    with printed_as("wide"):
        assert is_wide() and not is_yaml()
    assert not is_wide()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MqlakeBroker]:
    with MqlakeBroker(tmp_path_factory.mktemp("formats")) as started:
        yield started


def shown(broker: MqlakeBroker, *arguments: str) -> str:
    result = CliRunner().invoke(cli, ["admin", *arguments, "-n", broker.namesrv])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_one_listing_in_every_format(broker: MqlakeBroker) -> None:
    assert shown(broker, "topic", "create", "T", "-q", "2")
    as_json = json.loads(shown(broker, "topic", "status", "T", "-o", "json"))
    assert as_json == json.loads(shown(broker, "topic", "status", "T", "--json"))
    assert yaml.safe_load(shown(broker, "topic", "status", "T", "-o", "yaml")) == as_json
    assert yaml.safe_load(shown(broker, "topic", "list", "-o", "yaml")) == ["T"]
    table, wide = (shown(broker, "cluster", "list", "-o", each).splitlines()[0] for each in ("table", "wide"))
    assert set(table.split()) <= set(wide.split())
    both = CliRunner().invoke(cli, ["admin", "topic", "list", "--json", "-o", "yaml", "-n", broker.namesrv])
    assert both.exit_code == 2 and "--json and -o" in both.stderr


def test_watch_until_interrupted(broker: MqlakeBroker) -> None:
    command = [
        sys.executable,
        "-m",
        "mqlake",
        "admin",
        "topic",
        "list",
        "-n",
        broker.namesrv,
        "--watch",
        "0.05",
    ]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert [process.stdout.readline() for _ in range(5)] == ["T\n", "\n", "T\n", "\n", "T\n"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (0, 130, -signal.SIGINT)
