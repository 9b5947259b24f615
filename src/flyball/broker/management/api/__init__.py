"""RabbitMQ's management API, its paths and fields, filled with what a node of Flyball knows: a module a resource."""
