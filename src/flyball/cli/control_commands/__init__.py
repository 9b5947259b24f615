"""Implementation of `flyball control`. Slow to import, except `requests` and `failures`."""
