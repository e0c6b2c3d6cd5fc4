"""Says what an acknowledgement is worth under a store's settings, in the one line that a starting broker shows."""

from __future__ import annotations

from mqlake.store.config import BrokerRole, FlushDiskType, MessageStoreConfig


def acknowledgement_text(config: MessageStoreConfig) -> str:
    """Says what survives a power cut, as `docs/operations.md` has it, and names the settings that decide it."""
    if config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
        text = "an acknowledged message survives a power cut (flushDiskType=SYNC_FLUSH)"
    else:
        seconds = config.flush_interval_commit_log / 1000
        thorough = config.flush_commit_log_thorough_interval / 1000
        lost = f"the last {seconds:g} s, up to {thorough:g} s with little traffic"
        if config.transient_store_pool_enable:
            committed = config.commit_interval_commit_log / 1000
            text = (
                f"of acknowledged messages the end of the process may take the last {committed:g} s, a power cut "
                f"{lost} (flushDiskType=ASYNC_FLUSH, transientStorePoolEnable)"
            )
        else:
            text = (
                f"an acknowledged message survives the process; a power cut may take {lost} "
                "(flushDiskType=ASYNC_FLUSH)"
            )
    if config.broker_role is BrokerRole.SYNC_MASTER and config.in_sync_replicas > 1:
        text += f"; {config.in_sync_replicas} brokers have it (brokerRole=SYNC_MASTER)"
    return text
