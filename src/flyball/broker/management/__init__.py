"""The management API, Prometheus metrics and the web console."""
