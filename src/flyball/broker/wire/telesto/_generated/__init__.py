"""Made by scripts/generate-wire: not to be changed by hand."""
