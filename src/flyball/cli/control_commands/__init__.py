"""What the commands of `flyball control` do. Slow to import, but for `requests` and `failures`."""
