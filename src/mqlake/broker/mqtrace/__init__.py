"""Hooks of programs and plug-ins that see each send and each delivery, and the broker's own message trace."""
