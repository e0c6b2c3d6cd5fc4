"""The order of files, and who takes which."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.scheduling import (
    JAVA,
    KIND_OF,
    LONGEST,
    REST,
    SPARK,
    TOGETHER,
    KindScheduling,
    in_order,
    is_quick,
    kind_of,
    preferred,
)

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize(
    "path", [*LONGEST, *(beginning for beginning, _ in KIND_OF), *sum(TOGETHER.items(), ())]
)
def test_what_is_named_is_there(path: str) -> None:
    assert (ROOT / path).exists()


def test_kinds() -> None:
    assert kind_of("tests/spark/log/test_splits.py") == SPARK
    assert kind_of("tests/spark/test_cluster.py") == REST
    assert kind_of("tests/crash/test_kill.py") == JAVA
    assert kind_of("tests/store/test_clean.py") == REST


def test_what_is_quick() -> None:
    assert is_quick("tests/formats/test_names.py") and not is_quick("tests/interop/test_names.py")
    assert not is_quick(LONGEST[0]) and LONGEST[0].startswith("tests/")


def test_files_that_need_the_same_server_run_in_one_worker() -> None:
    scheduling = object.__new__(KindScheduling)
    for file, other in TOGETHER.items():
        assert (
            scheduling._split_scope(f"{file}::test_a") == scheduling._split_scope(f"{other}::test_b") == other
        )


def test_long_files_come_first_then_those_with_many_tests() -> None:
    tests: list[Any] = ["a:1", "b:1", "b:2", f"{LONGEST[1]}:1", "c:1", f"{LONGEST[0]}:1"]
    in_order(tests, lambda test: str(test).partition(":")[0])
    assert tests == [f"{LONGEST[0]}:1", f"{LONGEST[1]}:1", "b:1", "b:2", "a:1", "c:1"]


def test_a_worker_stays_with_its_kind() -> None:
    files = ["tests/store/test_clean.py", "tests/interop/test_golden.py", "tests/spark/log/test_splits.py"]
    rest, java, spark = files
    found = [preferred(files, worker) for worker in range(9)]
    assert found == [spark, java, rest, spark, java, rest, spark, rest, spark]
    assert preferred(files[:2], 0) == rest and preferred(files[1:], 2) == java
    assert preferred(files[:1], 0) == rest and preferred(files[2:], 1) == spark
