"""One node: its store, broker and listeners wired together, its logs, disk and owner."""
