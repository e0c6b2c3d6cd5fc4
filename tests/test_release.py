"""tools/release.py on small projects in repositories of their own: what has to agree, and what a release has in it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from tools import release
from tools.check_size import uv

ROOT = Path(__file__).resolve().parents[1]
PROJECT = """
[build-system]
requires = ["hatchling==1.27.0"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "{version}"
requires-python = ">=3.11"
license = "Apache-2.0"
license-files = ["LICENSE", "NOTICE"]
dependencies = [{needs}]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]
"""
CHANGELOG = """# Changelog

## 1.2.0 (2026-11-26)

- The one thing that is new.

## 1.1.0 (2026-01-01)

- Old.
"""


def git(root: Path, *arguments: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", "-C", str(root), *who, *arguments], check=True, capture_output=True)


def project(place: Path, name: str, version: str, package: str, needs: str = "") -> None:
    source = place / package
    source.mkdir(parents=True)
    (source / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (place / "pyproject.toml").write_text(
        PROJECT.format(name=name, version=version, package=package, needs=needs)
    )
    for legal in release.LEGAL:
        shutil.copy(ROOT / legal, place / legal)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A committed and tagged project, with a second distribution that the first one needs."""
    place = tmp_path / "project"
    project(place, "mqlake", "1.2.0", "src/mqlake", '"mqlake-client==1.2.0"')
    project(place / "packaging" / "client", "mqlake-client", "1.2.0", "mqlake_client")
    (place / "CHANGELOG.md").write_text(CHANGELOG)
    (place / "requirements.lock").write_text("")
    (place / ".gitignore").write_text("dist/\n")
    git(place, "init", "-q")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "all")
    git(place, "tag", "v1.2.0")
    return place


def test_a_tagged_tree_in_which_all_agrees_can_be_released(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main(["--check"], root) == 0
    assert capsys.readouterr().out == "mqlake 1.2.0 can be released\n"


@pytest.mark.parametrize(
    ("path", "old", "new", "said"),
    [
        ("CHANGELOG.md", "(2026-11-26)", "(unreleased)", "write the day of the release .* 'unreleased'"),
        ("CHANGELOG.md", "## 1.2.0", "## 1.3.0", "has no section '## 1.2.0"),
        ("CHANGELOG.md", "- The one thing that is new.", "", "says nothing about 1.2.0"),
        ("pyproject.toml", 'version = "1.2.0"', 'version = "1.3.0"', "mqlake-client has version 1.2.0, mqlake 1.3"),
        ("src/mqlake/__init__.py", "1.2.0", "1.1.0", "differ in the version"),
    ],
)  # fmt: skip
def test_what_disagrees_is_said(
    root: Path, capsys: pytest.CaptureFixture[str], path: str, old: str, new: str, said: str
) -> None:
    text = (root / path).read_text()
    assert old in text
    (root / path).write_text(text.replace(old, new))
    git(root, "commit", "-qam", "changed")
    git(root, "tag", "-f", "v1.2.0")
    assert release.main(["--check"], root) == 1
    assert re.search(said, capsys.readouterr().err)


def test_a_tag_that_is_missing_or_another_and_changes_are_said(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "new").write_text("")
    git(root, "tag", "-d", "v1.2.0")
    assert release.main(["--check"], root) == 1
    assert "no tag: git tag -a v1.2.0" in (said := capsys.readouterr().err)
    assert "not committed (1): new" in said
    git(root, "tag", "v1.1.9")
    assert release.main(["--check"], root) == 1
    assert "this commit's tag is v1.1.9, its version 1.2.0" in capsys.readouterr().err


@pytest.mark.nightly
def test_a_release_has_every_distribution_an_sbom_notes_and_sums(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is uncommitted is no part of it, nor is an old file of the same version."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    (root / "dist").mkdir()
    (root / "dist" / "mqlake-1.2.0-cp27-cp27-any.whl").write_text("old")
    (root / "src" / "mqlake" / "secret.py").write_text("")
    options = ["--uv", uv(), "--python", python]
    assert release.main(options, root) == 1
    assert "not committed" in capsys.readouterr().err
    assert release.main(["--rehearse", *options], root) == 0
    said = capsys.readouterr()
    assert "not yet: not committed (1): src/mqlake/secret.py" in said.err
    names = {path.name for path in (root / "dist").iterdir()}
    assert names == {
        "mqlake-1.2.0-py3-none-any.whl",
        "mqlake-1.2.0.tar.gz",
        "mqlake_client-1.2.0-py3-none-any.whl",
        "mqlake_client-1.2.0.tar.gz",
        "mqlake-1.2.0.cdx.json",
        "mqlake_client-1.2.0.cdx.json",
        "NOTES-1.2.0.md",
        "SHA256SUMS",
    }
    assert "git push origin v1.2.0" in said.out
    dist = root / "dist"
    with zipfile.ZipFile(dist / "mqlake-1.2.0-py3-none-any.whl") as wheel:
        assert "mqlake/secret.py" not in wheel.namelist()
    bom = json.loads((dist / "mqlake-1.2.0.cdx.json").read_text())
    assert (bom["bomFormat"], bom["metadata"]["component"]["version"]) == ("CycloneDX", "1.2.0")
    assert [each["name"] for each in bom["components"]] == ["mqlake-client"]
    assert "The one thing that is new." in (notes := (dist / "NOTES-1.2.0.md").read_text())
    assert "Old." not in notes
    assert (dist / "SHA256SUMS").read_text().count("\n") == 7
    subprocess.run(["sha256sum", "--quiet", "--strict", "-c", "SHA256SUMS"], cwd=dist, check=True)
    # a machine that gets these from others makes the rest of it
    (dist / "mqlake-1.2.0.cdx.json").unlink()
    (root / "src" / "mqlake" / "secret.py").unlink()
    assert release.main(["--finish", *options], root) == 0
    assert (dist / "mqlake-1.2.0.cdx.json").exists()
    (dist / "mqlake_client-1.2.0.tar.gz").unlink()
    assert release.main(["--finish", *options], root) == 1
    assert "has no sdist of mqlake-client 1.2.0" in capsys.readouterr().err


def wheel(
    place: Path, name: str, *, licences: tuple[str, ...] = release.LEGAL, version: str = "1.2.0"
) -> Path:
    with zipfile.ZipFile(place / name, "w") as archive:
        archive.writestr("mqlake-1.2.0.dist-info/METADATA", f"Name: mqlake\nVersion: {version}\n")
        for licence in licences:
            archive.writestr(f"mqlake-1.2.0.dist-info/licenses/{licence}", "")
    return place / name


def test_files_that_must_not_be_published_are_named(tmp_path: Path) -> None:
    """For one machine alone, plain where compiled is promised, without a licence, of another version, with .git."""
    native = release.Distribution(tmp_path, "mqlake", "1.2.0", is_native=True, pythons=">=3.11")

    def faults(path: Path) -> str:
        return "\n".join(release.faults_of_file(path, native))

    good = wheel(tmp_path, "mqlake-1.2.0-cp311-cp311-manylinux_2_17_x86_64.whl")
    assert faults(good) == ""
    assert "for this machine alone" in faults(wheel(tmp_path, "mqlake-1.2.0-cp311-cp311-linux_x86_64.whl"))
    assert "no native code" in faults(wheel(tmp_path, "mqlake-1.2.0-py3-none-any.whl"))
    assert "lacks NOTICE" in faults(wheel(tmp_path, good.name, licences=("LICENSE",)))
    assert "says that it is mqlake 1.1.0" in faults(wheel(tmp_path, good.name, version="1.1.0"))
    sources = tmp_path / "mqlake-1.2.0.tar.gz"
    (tmp_path / "PKG-INFO").write_text("Name: mqlake\nVersion: 1.2.0\n")
    with tarfile.open(sources, "w:gz") as archive:
        archive.add(tmp_path / "PKG-INFO", "mqlake-1.2.0/PKG-INFO")
        archive.add(ROOT / ".gitignore", "mqlake-1.2.0/.gitignore")
        archive.add(ROOT / "NOTICE", "mqlake-1.2.0/NOTICE")
        archive.add(ROOT / ".github" / "workflows" / "ci.yml", "mqlake-1.2.0/.github/workflows/ci.yml")
        archive.add(ROOT / "NOTICE", "mqlake-1.2.0/.git")
    found = [fault.removeprefix(f"{sources.name} ") for fault in faults(sources).splitlines()]
    assert found == ["has mqlake-1.2.0/.git", "lacks LICENSE"]


def test_what_the_sbom_says_is_carried_is_there_and_in_the_notice() -> None:
    notice = (ROOT / "NOTICE").read_text()
    for each in release.CARRIED:
        [found] = each["properties"]
        text = (ROOT / "src" / found["value"]).read_text()
        assert each.get("version", "") in text
        assert each["name"] in notice and found["value"].rpartition("/")[2] in notice


def test_the_project_is_one_that_can_be_released() -> None:
    """All but its day and its tag."""
    declared = release.distributions(ROOT)
    assert declared[0].name == "mqlake" and declared[0].is_native
    for fault in release.faults_of_tree(ROOT):
        assert re.search("unreleased|no tag|not committed", fault), fault
