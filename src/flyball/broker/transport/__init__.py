"""Connections, TLS and HTTP: bytes of sockets, read in measure, with limits."""
