"""The client protocols: a session per connection."""
