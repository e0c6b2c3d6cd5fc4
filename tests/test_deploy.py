"""deploy/: what the files say is what mqlake takes: commands, options, settings, ports, paths, metrics."""

from __future__ import annotations

import asyncio
import configparser
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from mqlake.auth.signature import sign
from mqlake.base.java_properties import read_properties
from mqlake.base.settings import parse_assignments
from mqlake.broker.config import read_settings
from mqlake.cli.main import cli
from mqlake.remoting.codes import RequestCode
from mqlake.remoting.command import RemotingCommand
from mqlake.remoting.headers.produce import SendMessageRequestHeaderV2
from tests.broker.live import Peer, on_a_broker
from tests.broker.metrics.test_guard import AUTH
from tests.parts import needed

DEPLOY = Path(__file__).parents[1] / "deploy"
UNITS = ("mqlake-broker.service", "mqlake-namesrv.service")
KUBERNETES = "1.34"
MANIFESTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
COMPOSE = yaml.safe_load(re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (DEPLOY / "compose.yaml").read_text()))
"""As it is when no variable is set."""
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
USER = 10001
WITH_A_SLAVE = "mqlake_slave_fall_behind_bytes"
"""This metric is there while a slave is."""


def parsed(arguments: list[str]) -> dict[str, Any]:
    """The parameters of a command line of mqlake, as the command would get them."""
    command: click.Command = cli
    context = click.Context(cli)
    while isinstance(command, click.Group):
        found = command.get_command(context, arguments[0])
        assert found is not None, arguments
        command, arguments = found, arguments[1:]
    return command.make_context("mqlake", list(arguments)).params


def settings_of(parameters: dict[str, Any]) -> dict[str, str]:
    given = parameters.get("settings") or ()
    settings = dict(given) if isinstance(given, dict) else parse_assignments(given)
    return {key: value.replace("$(POD_NAME)", "mqlake-broker-0") for key, value in settings.items()}


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """(pod, container) of all workloads."""
    for manifest in MANIFESTS:
        if "template" in manifest["spec"]:
            pod = manifest["spec"]["template"]["spec"]
            yield from ((pod, each) for each in pod["containers"])


def test_the_compose_file_is_one_by_its_specification() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run(
        [*command, str(DEPLOY / "compose.yaml")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_compose_file_advertises_it_publishes() -> None:
    """Under the same port, and each port once: clients outside go where the name server sends them."""
    taken = set()
    for name, service in COMPOSE["services"].items():
        published = [each.rsplit(":", 2)[1:] for each in service.get("ports", ())]
        assert not taken & {outside for outside, _ in published}, name
        taken |= {outside for outside, _ in published}
        if service["command"][0] == "broker":
            settings = settings_of(parsed(service["command"]))
            port = int(settings.get("listenPort", "10911"))
            assert settings["brokerIP1"] == name
            for each in (str(port), str(port - 2)):
                assert [each, each] in published, name


def test_manifests_fit_the_schema_of_kubernetes() -> None:
    import kubernetes_validate  # takes seconds, which each worker would spend

    for manifest in MANIFESTS:
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
    broken = {**MANIFESTS[0], "spec": {"ports": "9876"}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, KUBERNETES, strict=True)


def test_manifests_name_what_they_have() -> None:
    by_kind = {(each["kind"], each["metadata"]["name"]): each for each in MANIFESTS}
    for kind, name in list(by_kind):
        spec = by_kind[kind, name]["spec"]
        if kind == "StatefulSet":
            labels = spec["template"]["metadata"]["labels"]
            assert spec["selector"]["matchLabels"] == labels
            assert by_kind["Service", spec["serviceName"]]["spec"]["selector"] == labels
    for pod, container in containers():
        assert pod["securityContext"]["runAsUser"] == USER and pod["securityContext"]["runAsNonRoot"]
        assert container["securityContext"]["readOnlyRootFilesystem"]
        volumes = {each["name"] for each in pod["volumes"]} | {"data"}
        assert {each["name"] for each in container["volumeMounts"]} == volumes
        ports = {each["name"] for each in container["ports"]}
        for probe in (container.get(f"{kind}Probe") for kind in ("startup", "readiness", "liveness")):
            if probe:
                assert (probe.get("httpGet") or probe["tcpSocket"])["port"] in ports


def commands() -> list[list[str]]:
    found = [container["args"] for _, container in containers()]
    found += [service["command"] for service in COMPOSE["services"].values()]
    found.append(json.loads(re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)[0]))
    for name in UNITS:
        program, *arguments = shlex.split(unit(name)["Service"]["ExecStart"])
        assert program == "/opt/mqlake/bin/mqlake"
        found.append(arguments)
    return found


def test_every_command_line_is_one_of_mqlake_with_settings_that_act() -> None:
    lines = commands()
    assert [line[0] for line in lines].count("broker") == 5
    for line in lines:
        parameters = parsed(line)
        if line[0] in ("broker", "serve"):
            config, _, _ = read_settings(settings_of(parameters))
            assert line[0] == "serve" or "-c" in line or config.metrics_exporter_type.value == "PROM"
    with pytest.raises(click.UsageError):
        parsed(["broker", "--colour", "red"])


def test_the_broker_conf_is_taken() -> None:
    settings = read_properties(str(DEPLOY / "broker.conf"))
    config, store, _ = read_settings(settings)
    assert config.broker_name == "broker-a" and store.store_path_root_dir == "/var/lib/mqlake/broker"


class _Unit(configparser.ConfigParser):
    def optionxform(self, optionstr: str) -> str:
        return optionstr


def unit(name: str) -> configparser.ConfigParser:
    found = _Unit(interpolation=None, strict=True)
    found.read_string((DEPLOY / name).read_text())
    return found


@pytest.mark.parametrize("name", UNITS)
def test_units_let_mqlake_do_what_it_does_and_no_more(name: str) -> None:
    service = unit(name)["Service"]
    assert service["User"] == "mqlake" and service["ProtectSystem"] == "strict"
    assert service["StateDirectory"] == "mqlake"


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    """Its own check of the syntax, and of how much the units leave open (0 to 10)."""
    analyze = needed("systemd")
    program = tmp_path / "mqlake"
    program.symlink_to("/bin/true")
    for name in UNITS:
        text = (DEPLOY / name).read_text().replace("/opt/mqlake/bin/mqlake", str(program))
        (tmp_path / name).write_text(text)
        command = [analyze, "verify", "--man=no", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        command = [analyze, "security", "--offline=true", "--threshold=30", str(tmp_path / name)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-300:]
    (tmp_path / UNITS[0]).write_text(text.replace("ProtectSystem=strict", "ProtectSystem=very"))
    command = [analyze, "verify", "--man=no", str(tmp_path / UNITS[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "very" in done.stderr


def test_the_image_is_not_root_s_and_writes_to_its_volumes_only() -> None:
    assert f"USER {USER}:{USER}" in DOCKERFILE.partition("AS build")[2].rpartition("FROM")[2]
    volumes = json.loads(re.findall(r"^VOLUME (.*)$", DOCKERFILE, re.MULTILINE)[0])
    for service in COMPOSE["services"].values():
        mounted = {each.partition(":")[2] for each in service.get("volumes", ())}
        assert service["read_only"] and mounted in (set(), set(volumes))
        for path in re.findall(r"/[a-z]+(?=/)", " ".join(service["command"])):
            assert path in volumes
    root = DEPLOY.parent
    for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((root / name).exists() for name in line.split()), line


def test_the_image_s_constraints_are_the_lock_file_s() -> None:
    """What its sed makes of requirements.lock, read again."""
    lines = (DEPLOY.parent / "requirements.lock").read_text().splitlines()
    kept = [line.removesuffix(" \\") for line in lines if not line.startswith((" ", "#"))]
    assert "sed -E '/^[ #]/d; s/ \\\\$//'" in DOCKERFILE
    assert kept and all(re.fullmatch(r"[a-z0-9._-]+==\S+( ; .*)?", line) for line in kept), kept[:3]


def signed_send() -> RemotingCommand:
    header = SendMessageRequestHeaderV2(
        producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=1, queue_id=0, sys_flag=0,
        born_timestamp=0, flag=0, properties="", reconsume_times=0, unit_mode=False, batch=False,
    )  # fmt: skip
    command = RemotingCommand.create_request(RequestCode.SEND_MESSAGE_V2, header, b"body")
    sign(command, "admin", "admin-secret")
    return command


def test_the_dashboard_asks_for_metrics_that_a_broker_has(tmp_path: Path) -> None:
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked = {name for each in expressions for name in re.findall(r"\b(?:rocketmq|mqlake)_\w+", each)}
    texts: list[str] = []

    async def scene(peer: Peer) -> None:
        await peer.client.invoke(peer.address, signed_send())
        await peer.dispatched()
        assert peer.controller.metrics is not None
        url = f"http://127.0.0.1:{peer.controller.metrics.port}/metrics"
        texts.append(await asyncio.to_thread(lambda: urllib.request.urlopen(url).read().decode()))

    on_a_broker(
        tmp_path, scene, **AUTH, metricsAuthentication="false", brokerRole="ASYNC_MASTER", haListenPort="0"
    )
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)$", texts[0], re.MULTILINE))
    there = {f"{name}_bucket" if kind == "histogram" else name for name, kind in kinds.items()}
    assert len(asked) >= 20 and asked - there == {WITH_A_SLAVE}
    for kind, name in ((kinds[each.removesuffix("_bucket")], each) for each in asked & there):
        rates = {
            bool(re.search(rf"(?:rate|increase)\({name}\{{", each)) for each in expressions if name in each
        }
        assert rates == {kind != "gauge"}, name
    labels = set(re.findall(r'(\w+)="', texts[0])) | {"consumer_group", "step", "request"}
    used = {
        each
        for expr in expressions
        for part in re.findall(r"by \(([^)]*)\)", expr)
        for each in part.split(", ")
    }
    assert used - labels == set()
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    for variable in ("cluster", "node", "topic"):
        assert any(f"${variable}" in each for each in expressions)
