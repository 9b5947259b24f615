"""Written by scripts/generate-sync-client: not to be changed by hand."""
