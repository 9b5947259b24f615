"""The model registry: which version of which model is in force where, and why the previous one went."""
