"""Makes a release from a tag: `make release`, or `python tools/release.py [--check | --finish] [--rehearse]`.

    tag v0.1.0 = version = a dated section of CHANGELOG.md, and nothing uncommitted
      └─▶ the tag's files, exported ─▶ each distribution: sdist ─▶ a wheel for each Python ─▶ a tag that indexes take
            └─▶ dist/: SBOMs (CycloneDX), NOTES-0.1.0.md, SHA256SUMS ─▶ what to publish, and how, is printed

The distributions are the project itself and those that packaging/*/pyproject.toml declare. `--check` builds nothing.
`--rehearse` says what does not agree and goes on. `--finish` takes what other machines have built from dist/ and makes
the rest. Exit status 1 with a line for each fault; nothing is ever uploaded from here.
"""

from __future__ import annotations

import argparse
import datetime
import email
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14", "3.15")
LEGAL = ("LICENSE", "NOTICE")
DATED = re.compile(r"^## (?P<version>\S+) \((?P<when>[^)]*)\)$", re.MULTILINE)
UNDATED = "write the day of the release (2026-01-31) in place of"
CARRIED = (
    {
        "type": "library",
        "name": "htmx",
        "version": "2.0.8",
        "licenses": [{"license": {"id": "0BSD"}}],
        "purl": "pkg:npm/htmx.org@2.0.8",
        "properties": [{"name": "mqlake:file", "value": "mqlake/console/static/htmx.min.js"}],
    },
    {
        "type": "library",
        "name": "rocketmq-apis",
        "description": "the declarations of the gRPC interface apache.rocketmq.v2",
        "licenses": [{"license": {"id": "Apache-2.0"}}],
        "purl": "pkg:github/apache/rocketmq-apis",
        "properties": [{"name": "mqlake:file", "value": "mqlake/proxy/v2/service.proto"}],
    },
)
"""What is inside a wheel that others made, as CycloneDX describes it; the property names its file there."""


class ReleaseError(Exception):
    """Something that has to be put right before there can be a release; one line for each fault."""


@dataclass(frozen=True)
class Distribution:
    """One that is published, as its pyproject.toml declares it."""

    directory: Path
    name: str
    version: str
    is_native: bool
    """Compiled: a wheel for each Python."""
    pythons: str
    """What requires-python says."""

    @classmethod
    def read(cls, directory: Path) -> Distribution:
        declared = tomllib.loads((directory / "pyproject.toml").read_text(encoding="utf-8"))
        hook = declared.get("tool", {}).get("hatch", {}).get("build", {}).get("hooks", {}).get("custom", {})
        project = declared["project"]
        if "version" not in project:
            raise ReleaseError(f"{directory / 'pyproject.toml'} declares no version")
        is_native = "build_native" in hook.get("path", "")
        pythons = project.get("requires-python", "")
        return cls(directory, project["name"], project["version"], is_native, pythons)

    @property
    def stem(self) -> str:
        """How its files' names begin."""
        return f"{re.sub(r'[-_.]+', '_', self.name).lower()}-{self.version}"

    def files(self, place: Path) -> list[Path]:
        """Its wheels and its sdist in `place`."""
        return sorted([*place.glob(f"{self.stem}-*.whl"), *place.glob(f"{self.stem}.tar.gz")])


def distributions(root: Path) -> list[Distribution]:
    places = sorted(path.parent for path in root.glob("packaging/*/pyproject.toml"))
    return [Distribution.read(place) for place in (root, *places)]


# ---------------------------------------------------------------------- what has to agree


def git(root: Path, *arguments: str) -> str:
    """What git says. ReleaseError with its complaint."""
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ReleaseError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def section(changelog: str, version: str) -> tuple[str, str] | None:
    """(what is said of its day, its text) of a version's section; None without one."""
    headings = list(DATED.finditer(changelog))
    for number, heading in enumerate(headings):
        if heading["version"] == version:
            end = headings[number + 1].start() if number + 1 < len(headings) else len(changelog)
            return heading["when"], changelog[heading.end() : end].strip()
    return None


def faults_of_changelog(changelog: str, version: str) -> Iterator[str]:
    found = section(changelog, version)
    if found is None:
        yield f"CHANGELOG.md has no section '## {version} (DAY)'"
        return
    when, text = found
    try:
        datetime.date.fromisoformat(when)
    except ValueError:
        yield f"CHANGELOG.md: {UNDATED} '{when}' in '## {version} ({when})'"
    if not text:
        yield f"CHANGELOG.md says nothing about {version}"


def faults_of_tree(root: Path) -> list[str]:
    """What keeps the tree from being a release: each with what would put it right."""
    found = []
    project, *others = distributions(root)
    version = project.version
    found += [
        f"{other.name} has version {other.version}, {project.name} {version}"
        for other in others
        if other.version != version
    ]
    said = re.search(r'^__version__ = "(.*)"$', (root / "src/mqlake/__init__.py").read_text(), re.MULTILINE)
    if said is None or said[1] != version:
        found.append(f"src/mqlake/__init__.py and pyproject.toml ({version}) differ in the version")
    found += faults_of_changelog((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    tags = [tag for tag in git(root, "tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    if not tags:
        found.append(f"this commit has no tag: git tag -a v{version} -m 'mqlake {version}'")
    elif tags != [f"v{version}"]:
        found.append(f"this commit's tag is {', '.join(tags)}, its version {version}: v{version} is expected")
    changed = git(root, "status", "--porcelain").splitlines()
    if changed:
        found.append(f"not committed ({len(changed)}): {', '.join(line[3:] for line in changed[:5])}")
    return found


# ---------------------------------------------------------------------- building


def run(*command: str, env: dict[str, str] | None = None) -> str:
    """Its stdout. ReleaseError with both outputs if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)} failed with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def export(root: Path, place: Path) -> int:
    """The committed files, into `place`; the time of the commit is returned, in seconds since 1970."""
    archive = place.with_suffix(".tar")
    git(root, "archive", "--format=tar", "-o", str(archive), "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(place)
    archive.unlink()
    return int(git(root, "log", "-1", "--format=%ct"))


def interpreters(uv: str, wanted: list[str]) -> dict[str, str]:
    """Of the wanted versions those that are on this machine: the path of each."""
    found = {}
    for version in wanted:
        command = [uv, "python", "find", "--no-project", "--offline", version]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            found[version] = done.stdout.strip()
    return found


def allowed(distribution: Distribution, version: str) -> bool:
    from packaging.specifiers import SpecifierSet

    return version in SpecifierSet(distribution.pythons)


def build(distribution: Distribution, pythons: dict[str, str], uv: str, place: Path, when: int) -> None:
    """Its sdist, and wheels that are built from the sdist, so that it is proved to be whole."""
    env = os.environ | {"SOURCE_DATE_EPOCH": str(when)}
    options = ["--quiet", "--no-create-gitignore", "--out-dir", str(place)]
    run(uv, "build", *options, "--sdist", str(distribution.directory), env=env)
    [sdist] = place.glob(f"{distribution.stem}.tar.gz")
    print(f"built  {sdist.name}", flush=True)
    chosen = [path for version, path in pythons.items() if allowed(distribution, version)]
    for path in chosen if distribution.is_native else chosen[:1]:
        with tempfile.TemporaryDirectory() as directory:
            made = [*options[:-1], directory]
            run(uv, "build", *made, "--wheel", "--python", path, str(sdist), env=env)
            [wheel] = Path(directory).glob("*.whl")
            print(f"built  {portable(wheel, place).name}", flush=True)


def portable(wheel: Path, place: Path) -> Path:
    """The wheel in `place`; one for this machine's Linux gets the manylinux tag that its symbols allow."""
    if "-linux_" not in wheel.name:
        return wheel.rename(place / wheel.name)
    before = set(place.iterdir())
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    command = [sys.executable, "-m", "auditwheel", "repair", "--wheel-dir", str(place), str(wheel)]
    run(*command, env=environment)
    [made] = set(place.iterdir()) - before
    return made


# ---------------------------------------------------------------------- what was built


def faults_of_file(path: Path, distribution: Distribution) -> Iterator[str]:
    """What is wrong with a wheel or an sdist."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            [metadata] = [name for name in names if name.endswith(".dist-info/METADATA")]
            said = archive.read(metadata).decode()
        legal = {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
        platform = path.stem.rpartition("-")[2]
        if distribution.is_native and platform == "any":
            yield f"{path.name} has no native code (was there a compiler, and Python's headers?)"
        if platform.startswith("linux_"):
            yield f"{path.name} is for this machine alone: package indexes take manylinux tags"
    else:
        with tarfile.open(path) as sources:
            names = sources.getnames()
            part = sources.extractfile(f"{distribution.stem}/PKG-INFO")
            said = part.read().decode() if part else ""
        legal = {name.partition("/")[2] for name in names}
        yield from (f"{path.name} has {name}" for name in names if ".git" in name.split("/"))
    found = email.message_from_string(said)
    if (found["Name"], found["Version"]) != (distribution.name, distribution.version):
        yield f"{path.name} says that it is {found['Name']} {found['Version']}"
    yield from (f"{path.name} lacks {name}" for name in LEGAL if name not in legal)


def carried_by(wheel: Path) -> list[dict[str, Any]]:
    """The components of CARRIED whose files the wheel has."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    return [dict(each) for each in CARRIED if each["properties"][0]["value"] in names]  # type: ignore[index]


def sbom(distribution: Distribution, wheel: Path, uv: str, python: str, lock: Path, when: int) -> str:
    """What the wheel installs, with the locked versions and without extras, and what it carries: CycloneDX in JSON."""
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    with tempfile.TemporaryDirectory() as directory:
        venv, made = f"{directory}/venv", Path(directory, "bom.json")
        run(uv, "venv", "--quiet", "--no-project", "--python", python, venv)
        links = ["--find-links", str(wheel.parent), "--constraint", str(lock)]
        # uv keeps what it has installed by name and version, as an earlier rehearsal
        fresh = ("--refresh-package", "mqlake-client")
        run(uv, "pip", "install", "--quiet", "--python", venv, *fresh, *links, str(wheel))
        declared = ["--pyproject", str(distribution.directory / "pyproject.toml"), "--mc-type", "application"]
        options = ["--output-reproducible", "--sv", "1.6", "--of", "JSON", "-o", str(made)]
        env = os.environ | {"SOURCE_DATE_EPOCH": str(when)}
        run(sys.executable, "-m", "cyclonedx_py", "environment", *declared, *options, venv, env=env)
        found = json.loads(made.read_text(encoding="utf-8"))
    # the wheel itself is the main component
    found["components"] = [each for each in found.get("components", []) if each["name"] != distribution.name]
    found["components"] += [each | {"bom-ref": f"carried-{each['name']}"} for each in carried_by(wheel)]
    refs = {each["bom-ref"] for each in found["components"]} | {found["metadata"]["component"]["bom-ref"]}
    found["dependencies"] = [each for each in found.get("dependencies", []) if each["ref"] in refs]
    text = json.dumps(found, indent=2, sort_keys=True) + "\n"
    wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if wrong:
        raise ReleaseError(f"the SBOM of {distribution.name} is not CycloneDX: {str(wrong).splitlines()[0]}")
    return text


def sums(paths: list[Path]) -> str:
    """As sha256sum writes them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)


def finish(
    root: Path, declared: list[Distribution], uv: str, python: str, place: Path, when: int
) -> list[Path]:
    """Judges what was built, and writes what goes with it; all files of the release. ReleaseError for its faults."""
    version = declared[0].version
    found, faults = [], []
    for distribution in declared:
        files = distribution.files(place)
        kinds = {path.suffix for path in files}
        faults += [
            f"{place} has no {kind} of {distribution.name} {version}"
            for suffix, kind in ((".whl", "wheel"), (".gz", "sdist"))
            if suffix not in kinds
        ]
        faults += [fault for path in files for fault in faults_of_file(path, distribution)]
        found += files
    if faults:
        raise ReleaseError("\n".join(faults))
    tag = "cp" + run(python, "-c", "import sys; print('%d%d' % sys.version_info[:2])").strip()
    for distribution in declared:
        wheels = [path for path in distribution.files(place) if path.suffix == ".whl"]
        # the machine's own kind first: of the others nothing can be installed here
        own = [wheel for wheel in wheels if f"-{tag}-" in wheel.name and fits(wheel)] or wheels
        written = place / f"{distribution.stem}.cdx.json"
        written.write_text(sbom(distribution, own[0], uv, python, root / "requirements.lock", when))
        print(f"made   {written.name}", flush=True)
        found.append(written)
    notes = place / f"NOTES-{version}.md"
    told = section((root / "CHANGELOG.md").read_text(encoding="utf-8"), version)
    notes.write_text(f"# mqlake {version}\n\n{told[1] if told else ''}\n", encoding="utf-8")
    found.append(notes)
    (place / "SHA256SUMS").write_text(sums(found))
    return [*found, place / "SHA256SUMS"]


def fits(wheel: Path) -> bool:
    """True if this machine's kind of processor is the wheel's."""
    platform = wheel.stem.rpartition("-")[2]
    return platform == "any" or platform.endswith(os.uname().machine)


def shown(paths: list[Path], version: str) -> str:
    """What there is, and how it is published."""
    uploads = [path for path in paths if path.suffix in (".whl", ".gz")]
    lines = [f"{path.stat().st_size / 1e6:8.2f} MB  {path.name}" for path in paths]
    place = os.path.relpath(paths[0].parent)
    beside = " ".join(os.path.join(place, path.name) for path in paths)
    lines += [
        f"{'':12}in {place}",
        "",
        f"To publish it: git push origin v{version}, and the forge's workflow does the rest. Or by hand:",
        f"  uv publish {' '.join(os.path.join(place, path.name) for path in uploads)}",
        f"  gh release create v{version} --notes-file {place}/NOTES-{version}.md {beside}",
        f"  docker build -f deploy/Dockerfile -t mqlake:{version} . && docker push mqlake:{version}",
    ]
    return "\n".join(lines)


def main(arguments: list[str], root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--check", action="store_true", help="only say whether tag, version and changelog agree"
    )
    mode.add_argument("--finish", action="store_true", help="the distributions are in --out already")
    parser.add_argument("--rehearse", action="store_true", help="go on where they do not")
    parser.add_argument("--out", type=Path, default=root / "dist", help="default: dist")
    parser.add_argument(
        "--python", action="append", help="versions to build wheels for; default: all there are"
    )
    parser.add_argument("--uv", default="uv", help="default: uv")
    given = parser.parse_args(arguments)
    try:
        return release(given, root)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1


def release(given: argparse.Namespace, root: Path) -> int:
    faults = faults_of_tree(root)
    version = Distribution.read(root).version
    if faults and not given.rehearse:
        raise ReleaseError("\n".join(faults))
    if given.check:
        print(f"mqlake {version} can be released")
        return 0
    for fault in faults:
        print(f"not yet: {fault}", file=sys.stderr, flush=True)
    if not os.environ.get("MQLAKE_URL"):
        print("MQLAKE_URL is not set: the metadata will name no repository", file=sys.stderr, flush=True)
    place: Path = given.out.resolve()
    place.mkdir(parents=True, exist_ok=True)
    wanted = given.python or list(PYTHONS)
    pythons = interpreters(given.uv, wanted)
    with tempfile.TemporaryDirectory(prefix="mqlake-release-") as directory:
        tree = Path(directory, "mqlake")
        when = export(root, tree)
        declared = distributions(tree)
        if not given.finish:
            for distribution in declared:
                for old in distribution.files(place):
                    old.unlink()
                build(distribution, pythons, given.uv, place, when)
        python = next(iter(pythons.values()), sys.executable)
        files = finish(tree, declared, given.uv, python, place, when)
    print(shown(files, version))
    for missing in [] if given.finish else [each for each in wanted if each not in pythons]:
        if any(each.is_native and allowed(each, missing) for each in declared):
            print(f"no wheels for Python {missing}: it is not on this machine", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
