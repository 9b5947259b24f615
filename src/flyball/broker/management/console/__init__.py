"""The web console, served from the installed package."""
