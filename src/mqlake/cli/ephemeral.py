"""`mqlake serve --ephemeral`: a RocketMQ for tests, which costs little and leaves nothing."""

from __future__ import annotations

import tempfile

import click
from click.core import ParameterSource

from mqlake.base.work_directory import work_directory

PREFIX = "mqlake-ephemeral-"
SETTINGS = {
    # room for a message of 4 MiB, two files allocated at a time
    "mappedFileSizeCommitLog": "5m",
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "5000",
    "maxIndexNum": "20000",
    # 4 MB less memory: pages of the log are not mapped
    "writeWithoutMmap": "true",
    # a test machine may be busy, and its disk nearly full
    "brokerFastFailureEnable": "false",
    "osPageCacheBusyTimeOutMills": "60000",
    "diskCheckEnable": "false",
}


def prepare() -> str:
    """A directory that is deleted when this process ends, or, if it is killed, when the next one starts."""
    return work_directory(tempfile.gettempdir(), PREFIX)


def is_given(name: str) -> bool:
    """True if the user gave this option of the command that runs."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE
