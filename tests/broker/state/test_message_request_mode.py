from __future__ import annotations

import json

from mqlake.broker.state.message_request_mode import MessageRequestModeManager
from mqlake.remoting.bodies.client import MessageRequestMode, SetMessageRequestModeRequestBody


def test_what_rocketmq_has_left_is_kept(tmp_path):
    path = tmp_path / "messageRequestMode.json"
    left = {"consumerGroup": "G", "mode": "POP", "popShareQueueNum": 3, "topic": "T"}
    path.write_text(json.dumps({"messageRequestModeMap": {"T": {"G": left}}}))
    manager = MessageRequestModeManager(str(path))
    manager.load()
    assert manager.modes.message_request_mode_map["T"]["G"].mode is MessageRequestMode.POP
    manager.set_message_request_mode(SetMessageRequestModeRequestBody(topic="T", consumer_group="H"))
    kept = json.loads(path.read_text())["messageRequestModeMap"]["T"]
    assert kept["G"] == left and kept["H"]["mode"] == "PULL"
