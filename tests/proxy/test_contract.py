"""The generated code is what the .proto files give, and names what clients name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mqlake.proxy.service import SERVICE
from mqlake.proxy.v2 import definition_pb2 as definition
from mqlake.proxy.v2 import service_pb2 as v2

RPCS = """
QueryRoute Heartbeat SendMessage QueryAssignment ReceiveMessage AckMessage ForwardMessageToDeadLetterQueue
PullMessage UpdateOffset GetOffset QueryOffset EndTransaction Telemetry NotifyClientTermination
ChangeInvisibleDuration RecallMessage SyncLiteSubscription
"""
ROOT = Path(__file__).resolve().parent.parent.parent


def test_the_generated_code_is_up_to_date():
    tool = [sys.executable, str(ROOT / "tools" / "make_proto.py"), "--check"]
    done = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rpc_has_its_path():
    assert SERVICE.full_name == "apache.rocketmq.v2.MessagingService"
    assert set(SERVICE.methods_by_name) == set(RPCS.split())


def test_bytes_are_those_of_the_contract():
    """Field numbers and wire types, written by hand."""
    request = v2.ReceiveMessageRequest(
        group=definition.Resource(name="G"), batch_size=5, auto_renew=True, attempt_id="a"
    )
    assert request.SerializeToString() == b"\x0a\x03\x12\x01G" + b"\x20\x05" + b"\x30\x01" + b"\x42\x01a"
    system = definition.SystemProperties(tag="t", message_group="g", priority=7, queue_offset=0)
    assert system.SerializeToString() == b"\x0a\x01t" + b"\x70\x00" + b"\x8a\x01\x01g" + b"\xb0\x01\x07"
    status = v2.TelemetryCommand(status=definition.Status(code=definition.Code.OK))
    assert status.SerializeToString() == b"\x0a\x04\x08\xa0\x9c\x01"
