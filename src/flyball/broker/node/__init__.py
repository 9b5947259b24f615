"""One node: wires its store, broker and listeners; its logs, disk and owner."""
