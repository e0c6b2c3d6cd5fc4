""".github/workflows: what they run is there, and they are valid by the forge's schema and by actionlint."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.parts import needed

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint@v1.7.12"
WORKFLOWS: dict[str, Any] = {path.name: yaml.safe_load(path.read_text()) for path in FILES}
MADE = {"dist", ".venv", ".uv", "rocketmq"}
"""What a workflow makes before it names it."""


def jobs(name: str) -> dict[str, Any]:
    found: dict[str, Any] = WORKFLOWS[name]["jobs"]
    return found


def scripts() -> list[str]:
    return [
        step["run"]
        for name in WORKFLOWS
        for job in jobs(name).values()
        for step in job["steps"]
        if "run" in step
    ]


def test_the_forge_takes_them() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *map(str, FILES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_actionlint_finds_nothing() -> None:
    """Expressions, contexts, needs, runners: what no schema says."""
    command = [needed("go"), "run", ACTIONLINT, *map(str, FILES)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_make_target_and_path_is_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {target for script in scripts() for target in re.findall(r"\bmake ([a-z][\w-]*)", script)}
    assert {"setup", "test-all", "rocketmq-tests", "release"} <= named <= targets
    paths = {
        path for script in scripts() for path in re.findall(r"(?<![\w$/}])\.?\w[\w.-]*/[\w./-]+", script)
    }
    paths = {path for path in paths if path.partition("/")[0] not in MADE and not path.startswith("ghcr.io")}
    assert {".ci/run", "tools/release.py", "tools/try_image.py", "deploy/Dockerfile"} <= paths
    # packaging/ may declare no further distribution
    assert [path for path in paths if not (ROOT / path).exists() and path != "packaging/"] == []


def test_ci_runs_what_everybody_runs() -> None:
    assert "bash .ci/run" in [step.get("run") for step in jobs("ci.yml")["ci"]["steps"]]


def test_a_release_is_built_for_each_python_and_processor_and_published_without_a_secret() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    promised = set(re.findall(r"Programming Language :: Python :: (3\.\d+)", declared))
    release = jobs("release.yml")
    matrix = release["try"]["strategy"]["matrix"]
    assert set(matrix["python"]) == promised
    assert matrix["runner"] == release["wheels"]["strategy"]["matrix"]["runner"]
    assert [runner.endswith("arm") for runner in matrix["runner"]] == [False, True]
    [built] = re.findall(r'^build = "(cp.*)"$', declared, re.MULTILINE)
    assert {f"cp{version.replace('.', '')}-*" for version in promised} <= set(built.split())
    publish = release["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert (
        set(publish["needs"]) == {"check", "try"} and release["check"]["if"] == "github.event_name == 'push'"
    )
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text()


@pytest.mark.parametrize("name", sorted(WORKFLOWS))
def test_only_the_forges_own_actions_are_trusted(name: str) -> None:
    used = [step["uses"] for job in jobs(name).values() for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[\w-]+@v\d+", each) for each in used)
