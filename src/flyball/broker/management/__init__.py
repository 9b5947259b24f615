"""What people and their tools see of a node: the management API, metrics and the web console."""
