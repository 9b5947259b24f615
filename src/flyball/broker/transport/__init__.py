"""Connections, TLS and HTTP: sockets with backpressure and limits."""
