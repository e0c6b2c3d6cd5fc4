from __future__ import annotations

import importlib.metadata
import math
import subprocess
import sys
import zipfile
from importlib.metadata import Distribution
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


def test_the_packages_of_a_finder_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None: ...

        def find_distributions(self, context: object) -> list[Distribution]:
            return [Offering()]

    class Offering(Distribution):
        def read_text(self, filename: str) -> str | None:
            return {"entry_points.txt": f"[{GROUP}]\nroot = math:tau\n", "METADATA": "Name: x\n"}.get(
                filename
            )

        def locate_file(self, path: object) -> Path:
            raise NotImplementedError

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert [plugin.value for plugin in load_plugins(GROUP)] == [math.tau]


def test_a_package_in_an_archive_has_plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "acme.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("acme.py", "x = 7")
        file.writestr("acme-1.2.dist-info/METADATA", "Name: acme\nVersion: 1.2\n")
        file.writestr("acme-1.2.dist-info/entry_points.txt", f"[{GROUP}]\nx = acme:x\n")
    monkeypatch.syspath_prepend(archive)
    monkeypatch.delitem(sys.modules, "acme", raising=False)
    assert [plugin.value for plugin in load_plugins(GROUP)] == [7]


def test_metadata_that_cannot_be_read_is_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "acme-1.2.dist-info" / "entry_points.txt").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    asked: list[str] = []
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: asked.append(group) or [])
    assert load_plugins(GROUP) == []
    assert asked == [GROUP]


def test_a_process_without_plugins_does_not_load_what_finds_them() -> None:
    program = (
        "import sys; from mqlake.base.plugins import load_plugins; "
        "print(load_plugins('mqlake.none'), 'importlib.metadata' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"
