"""Bytes on a connection become commands, and commands bytes.

codes · command · codec · receive_buffer · headers · bodies      no I/O: they can be tested byte by byte
connection ◀── server, client                                    driven by asyncio
tls                                                              TLS on the same port, recognized by the first byte
"""
