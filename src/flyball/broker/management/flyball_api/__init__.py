"""Flyball's own part of the API, below /api/flyball: what RabbitMQ has no word for."""
