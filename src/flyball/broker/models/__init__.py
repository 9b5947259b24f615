"""The model registry: the version in force of each model and scope, and why the previous version was replaced."""
