"""Other people's client libraries, used as their users use them, against RabbitMQ and Flyball."""
