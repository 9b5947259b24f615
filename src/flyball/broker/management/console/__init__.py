"""The web console: its pages, served from the installed package."""
