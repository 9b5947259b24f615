"""The protocols that clients speak: a session for each connection."""
