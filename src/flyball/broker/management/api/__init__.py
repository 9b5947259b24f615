"""RabbitMQ's management API on top of Flyball's data: one module per resource."""
