"""Implementation of `flyball demo`: its parts, its experiments, and their display."""
