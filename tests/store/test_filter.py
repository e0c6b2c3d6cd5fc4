from __future__ import annotations

import pytest

from mqlake.message import tags_code
from mqlake.store.filter import TagFilter


@pytest.mark.parametrize("expression", ["*", " * ", "", "  "])
def test_everything(expression: str) -> None:
    every = TagFilter(expression)
    assert all(every.is_matched_by_consume_queue(code) for code in (0, -1, tags_code("a")))
    assert TagFilter().is_matched_by_consume_queue(7)


def test_some_tags() -> None:
    some = TagFilter(" TagA||TagB || ")
    assert some.codes == {tags_code("TagA"), tags_code("TagB")}
    assert some.is_matched_by_consume_queue(tags_code("TagB"))
    assert not some.is_matched_by_consume_queue(tags_code("TagC"))
    assert not some.is_matched_by_consume_queue(0)  # a message without tags


def test_tags_of_one_hash_pass_until_the_client_compares_them() -> None:
    assert tags_code("Aa") == tags_code("BB")
    assert TagFilter("Aa").is_matched_by_consume_queue(tags_code("BB"))


def test_the_record_is_not_looked_at() -> None:
    assert TagFilter("TagA").is_matched_by_commit_log(memoryview(b""))
