"""The story of `flyball demo`: its parts, its experiments, and how it is shown."""
