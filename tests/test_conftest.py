"""What tests/conftest.py promises to all tests."""

from __future__ import annotations

import logging

import pytest
from pyspark.logger import PySparkLogger


def test_the_captured_log_is_text_after_a_query_of_spark_has_failed(caplog: pytest.LogCaptureFixture) -> None:
    """PySpark's logger, which pytest gives its handler to, would make it write JSON in all later tests."""
    logger = PySparkLogger.getLogger("mqlake tests")
    logger.addHandler(caplog.handler)
    try:
        logging.getLogger("mqlake").error('no "x"', exc_info=ValueError('no "x"'))
    finally:
        logger.removeHandler(caplog.handler)
    first, *_, last = caplog.text.splitlines()
    assert first.endswith('no "x"') and last == 'ValueError: no "x"'
