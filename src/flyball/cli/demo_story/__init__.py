"""The story that `flyball demo` tells: its parts, its experiments, and how it is shown."""
