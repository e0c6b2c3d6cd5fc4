"""Bytes on a connection become commands, and commands bytes.

codes · command · codec · receive_buffer · headers · bodies      no I/O: they can be tested byte by byte
connection ◀── server, client                                    what asyncio drives
tls                                                              TLS on the same port, told by the first byte
"""
