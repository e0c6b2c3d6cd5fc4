"""Processors, one for each family of requests from clients."""
