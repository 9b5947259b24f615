"""What tells a meter about the connections of each kind of pool."""
