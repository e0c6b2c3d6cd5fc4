from __future__ import annotations

from pathlib import Path

import pytest

from mqlake.base.plugins import load_plugin, load_plugins
from mqlake.errors import ConfigError
from tests.plugin_package import install

GROUP = "mqlake.test_group"


def test_all_of_a_group_in_the_order_of_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_plugins(GROUP) == []
    install(tmp_path, monkeypatch, "acme", "x, y = 1, 2", {GROUP: "second = acme:y\nfirst = acme:x"})
    found = load_plugins(GROUP)
    assert [plugin.value for plugin in found] == [1, 2]
    assert found[0].name == "first (acme:x of acme 1.2)"


def test_one_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no installed package has an entry point 'x' .* there are: none"):
        load_plugin(GROUP, "x")
    install(tmp_path, monkeypatch, "acme", "x = 1", {GROUP: "x = acme:x"})
    assert load_plugin(GROUP, "x").value == 1
    with pytest.raises(ConfigError, match="there are: x"):
        load_plugin(GROUP, "y")
    other = tmp_path / "other"
    other.mkdir()
    install(other, monkeypatch, "umbrella", "x = 1", {GROUP: "x = umbrella:x"})
    with pytest.raises(
        ConfigError, match=r"several installed packages.*acme 1.2.*umbrella 1.2|umbrella.*acme"
    ):
        load_plugin(GROUP, "x")


@pytest.mark.parametrize(
    ("source", "cause"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("", "AttributeError"),
        ("1 +", "SyntaxError"),
    ],
)
def test_one_that_cannot_be_loaded_is_named_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, cause: str
) -> None:
    install(tmp_path, monkeypatch, "acme", source, {GROUP: "hook = acme:hook"})
    for load in (lambda: load_plugins(GROUP), lambda: load_plugin(GROUP, "hook")):
        with pytest.raises(ConfigError, match=rf"hook \(acme:hook of acme 1.2\) of {GROUP} .*{cause}"):
            load()
