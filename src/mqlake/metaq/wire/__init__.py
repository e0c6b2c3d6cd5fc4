"""Connections of the text protocol, for servers and clients, and a small HTTP server."""
