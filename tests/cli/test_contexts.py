"""contexts: the private file, and which of options, variables and contexts counts."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from mqlake.cli.clients import cluster_options
from mqlake.cli.contexts import Context, Contexts, path_of_contexts, read_contexts, write_contexts
from mqlake.cli.main import cli
from mqlake.client import ClientConfig
from mqlake.errors import CertificateError, ConfigError, MqlakeError, NoNameServerError, ResponseError

BOTH = Contexts(
    {
        "test": Context(namesrv="10.0.0.1:9876"),
        "prod": Context(namesrv="10.9.9.9:9876", access_key="me", secret_key="s3cret"),
    },
    "prod",
)


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "deep" / "contexts.json"
    monkeypatch.setenv("MQLAKE_CONTEXTS", str(path))
    return path


@click.command()
@cluster_options
def probe(where: ClientConfig) -> None:
    click.echo(f"{where.namesrv_addr} {where.access_key} {where.secret_key} {where.tls is not None}")


def seen(*arguments: str, **env: str) -> str:
    names = ("NAMESRV_ADDR", "MQLAKE_ACCESS_KEY", "MQLAKE_SECRET_KEY", "MQLAKE_CREDENTIALS", "MQLAKE_CONTEXT")
    result = CliRunner().invoke(probe, arguments, env={**dict.fromkeys(names), **env})
    return result.stdout.strip() if result.exit_code == 0 else str(result.exception)


def test_there_and_back_in_a_private_file(file: Path) -> None:
    assert read_contexts() == Contexts()
    write_contexts(BOTH)
    assert read_contexts() == BOTH
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and "s3cret" not in repr(BOTH)
    file.chmod(0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        read_contexts()


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"contexts":[]}', '{"contexts":{"a":{"color":"red"}}}', '{"contexts":{"a":{"tls":"yes"}}}'],
)
def test_a_file_that_cannot_be_read_is_named(file: Path, text: str) -> None:
    write_contexts(BOTH)
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"contexts\.json: "):
        read_contexts()


def test_where_the_file_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MQLAKE_CONTEXTS")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert path_of_contexts() == str(tmp_path / "mqlake" / "contexts.json")
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert path_of_contexts() == str(tmp_path / ".config" / "mqlake" / "contexts.json")


def test_which_counts() -> None:
    assert seen() == "127.0.0.1:9876   False"
    write_contexts(BOTH)
    assert seen() == "10.9.9.9:9876 me s3cret False"
    assert seen("-n", "elsewhere:1") == "elsewhere:1   False", "keys of a context stay with its name servers"
    assert seen(NAMESRV_ADDR="elsewhere:1") == "elsewhere:1   False"
    assert seen("--context", "test", NAMESRV_ADDR="elsewhere:1") == "10.0.0.1:9876   False"
    assert seen(MQLAKE_CONTEXT="test") == "10.0.0.1:9876   False"
    assert seen("--context", "prod", "-n", "elsewhere:1") == "elsewhere:1 me s3cret False"
    assert seen("--access-key", "other", "--secret-key", "x") == "10.9.9.9:9876 other x False"
    assert seen("--tls") == "10.9.9.9:9876 me s3cret True"
    for half in ("access", "secret"):  # requests would go unsigned
        assert "without its" in seen("-n", "elsewhere:1", f"--{half}-key", "alone")
    assert seen("--context", "prd") == "unknown context 'prd'; did you mean 'prod'?"


NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize(
    "command", [("admin", "topic", "list"), ("consume", "T"), ("produce", "T", "-m", "x")]
)
def test_a_context_that_leads_to_nobody_is_named(command: tuple[str, ...]) -> None:
    """Somebody may have chosen it long ago; the error would blame an address that was not typed."""
    write_contexts(Contexts({"prod": Context(namesrv=NOBODY)}, "prod"))
    error = CliRunner().invoke(cli, command, env={"NAMESRV_ADDR": None, "MQLAKE_CONTEXT": None}).stderr
    assert "`mqlake context set prod -n HOST:PORT`" in error and "start one with `mqlake serve`" in error
    error = CliRunner().invoke(cli, [*command, "-n", NOBODY]).stderr
    assert "or set yours with -n" in error and "prod" not in error


def test_errors_name_the_context_and_say_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server whose certificate is not accepted is there: nobody should start another one."""
    unaccepted = NoNameServerError([(NOBODY, "certificate verify failed")])
    unaccepted.__cause__ = CertificateError(NOBODY, "certificate verify failed")
    error: MqlakeError = unaccepted

    async def fail(*_: object) -> None:
        raise error

    write_contexts(Contexts({"prod": Context(namesrv=NOBODY)}, "prod"))
    monkeypatch.setattr("mqlake.client.admin.Admin.fetch_all_topic_list", fail)

    def said(*more: str) -> str:
        command = ["admin", "topic", "list", *more]
        return CliRunner().invoke(cli, command, env={"NAMESRV_ADDR": None, "MQLAKE_CONTEXT": None}).stderr

    assert said() == f"Error: {unaccepted}; the cluster is that of context prod\n"
    error = ResponseError(17, "no such topic")
    assert said() == "Error: no such topic (code 17); the cluster is that of context prod\n"
    error = ResponseError(17, "no such topic")
    assert said("-n", NOBODY) == "Error: no such topic (code 17)\n"
    error = ConfigError("--queue 7 is not there")
    assert said() == "Error: --queue 7 is not there\n"


def test_the_file_has_only_what_is_set(file: Path) -> None:
    write_contexts(Contexts({"t": Context(namesrv="a:1", tls=True)}, ""))
    assert json.loads(file.read_text())["contexts"] == {"t": {"namesrv": "a:1", "tls": True}}
