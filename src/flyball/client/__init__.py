"""Clients of Flyball: the Python client, the adaptive consumer, and reports to a node."""
