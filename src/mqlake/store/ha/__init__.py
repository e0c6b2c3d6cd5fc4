"""Replication of the commit log: HAService on the master, HAClient on the slave, as RocketMQ 5.3.3 does it.

    master                                            slave
    HAService ── HAConnection  ── header, bytes ──▶  HAClient ──▶ ReplicaLog ──▶ commitlog, dispatch
       │              ▲ ◀───────── offset ────────────  │
       └▶ GroupTransferService: puts that wait for replicas

HAConnection, HAClient and GroupTransferService do no I/O: they take bytes and the time, and give bytes.
ha_service and ha_client_service run them over sockets, on a thread each.
"""
