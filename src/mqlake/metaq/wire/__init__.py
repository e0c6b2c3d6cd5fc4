"""Connections that speak the text protocol: a server's, a client's."""
