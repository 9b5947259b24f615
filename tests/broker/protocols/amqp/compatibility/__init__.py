"""The same tests against RabbitMQ and against Flyball: what RabbitMQ does is what Flyball has to do."""
