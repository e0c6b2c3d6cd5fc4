"""Adapters: frameworks that people already use, over `mqlake.client`. Each needs its framework, and nothing else."""
