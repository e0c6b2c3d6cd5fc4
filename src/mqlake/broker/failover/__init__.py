"""Failover: which replica is master is decided in a consensus service that is there already.

record      what stands in the service: master, epoch, in-sync set, where each epoch began
machine     what a replica does with it, step by step, without I/O and without a clock
service     the few operations that the machine needs;  etcd: those of etcd 3
driver      runs the machine for a broker
"""
