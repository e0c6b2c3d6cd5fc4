"""What a starting broker says of its acknowledgements."""

from __future__ import annotations

import pytest

from mqlake.cli.durability import acknowledgement_text
from mqlake.store.config import MessageStoreConfig

LAST = "a power cut may take the last 0.5 s, up to 10 s with little traffic"
ASYNC = f"an acknowledged message survives the process; {LAST} (flushDiskType=ASYNC_FLUSH)"
POOL = (
    "of acknowledged messages the end of the process may take the last 0.2 s, a power cut the last 0.5 s, "
    "up to 10 s with little traffic (flushDiskType=ASYNC_FLUSH, transientStorePoolEnable)"
)
SYNC = "an acknowledged message survives a power cut (flushDiskType=SYNC_FLUSH)"


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ("", ASYNC),
        (
            "flushIntervalCommitLog=1000 flushCommitLogThoroughInterval=2500",
            ASYNC.replace("0.5 s", "1 s").replace("10 s", "2.5 s"),
        ),
        ("transientStorePoolEnable=true", POOL),
        ("transientStorePoolEnable=true flushDiskType=SYNC_FLUSH", SYNC),
        (
            "flushDiskType=SYNC_FLUSH brokerRole=SYNC_MASTER inSyncReplicas=2",
            f"{SYNC}; 2 brokers have it (brokerRole=SYNC_MASTER)",
        ),
        ("flushDiskType=SYNC_FLUSH brokerRole=SYNC_MASTER", SYNC),
    ],
)
def test_says_what_survives(settings: str, shown: str) -> None:
    given = dict(pair.split("=") for pair in settings.split())
    assert acknowledgement_text(MessageStoreConfig.from_mapping(given)) == shown
