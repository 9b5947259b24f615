"""What `flyball top` shows, how it is drawn and where it comes from; `flyball demo` shows parts of it."""
