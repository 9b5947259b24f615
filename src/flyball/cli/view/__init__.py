"""The live view of `flyball top`; `flyball demo` uses parts of it."""
