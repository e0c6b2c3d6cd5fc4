from __future__ import annotations

import json
import logging
import os
import re
import socket
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from mqlake.cli.logs import JsonFormatter, TextFormatter, log_options
from tests.waiting import PATIENCE_S


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord(
        {"name": "mqlake.x", "levelname": "WARNING", "msg": message, "created": 1_700_000_000.1239}
    )
    made.__dict__.update(extra)
    return made


def test_text_is_one_line():
    assert TextFormatter().format(record("two\nlines")) == (
        "2023-11-14T22:13:20.123Z WARNING mqlake.x: two lines"
    )


def test_the_journal_has_the_time_already(tmp_path):
    code = "import logging, mqlake.cli.logs as l; l.set_up('warning', 'text'); logging.warning('said')"
    path = tmp_path / "stderr"
    for journal, begin in ((True, "WARNING"), (False, "20")):
        with path.open("w") as stderr:
            found = os.fstat(stderr.fileno())
            stream = f"{found.st_dev}:{found.st_ino + (not journal)}"
            command = [sys.executable, "-c", code]
            subprocess.run(command, stderr=stderr, env={**os.environ, "JOURNAL_STREAM": stream}, check=True)
        said = path.read_text()
        assert said.startswith(begin) and said.endswith("WARNING root: said\n")


def test_json_is_one_object_a_line():
    text = JsonFormatter().format(record('a "quoted"\nline', topic="T", where=object))
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "2023-11-14T22:13:20.123Z",
        "level": "WARNING",
        "logger": "mqlake.x",
        "message": 'a "quoted"\nline',
        "topic": "T",
        "where": str(object),
    }


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()])
def test_a_traceback_is_kept(formatter):
    try:
        raise ValueError("what went wrong")
    except ValueError:
        failed = record("failed", exc_info=sys.exc_info())
    assert "ValueError: what went wrong" in formatter.format(failed)


def test_the_options_are_the_commands_own():
    @click.command()
    @click.argument("name")
    @log_options
    def command(name: str) -> None:
        click.echo(name)

    assert CliRunner().invoke(command, ["x"]).output == "x\n"
    assert CliRunner().invoke(command, ["x", "--log-level", "loud"]).exit_code == 2


def logged_of_a_bad_frame(tmp_path, *options):
    """The lines that a name server logs when somebody sends it what is no frame."""
    command = [sys.executable, "-m", "mqlake", "namesrv", "-p", "0", "--host", "127.0.0.1"]
    command += ["--kv-path", str(tmp_path / "kv.json"), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        connection.sendall(bytes(8))
        assert connection.recv(1) == b""  # it has been seen
    process.terminate()
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, errors
    return errors.splitlines()


def test_a_server_logs_what_is_asked_for(tmp_path):
    [line] = logged_of_a_bad_frame(tmp_path, "--log-level", "warning", "--log-format", "json")
    found = json.loads(line)
    assert (found["level"], found["logger"]) == ("WARNING", "mqlake.remoting.connection")
    assert "a frame of 4 bytes" in found["message"]
    [line] = logged_of_a_bad_frame(tmp_path, "--log-level", "warning")
    assert re.match(r"\d{4}-\d\d-\d\dT\S+Z WARNING mqlake\.remoting\.connection: ", line)
    assert logged_of_a_bad_frame(tmp_path, "--log-level", "error") == []
