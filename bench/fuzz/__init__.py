"""A structure-aware fuzzer for the five ports of a node: AMQP, HTTP, Telesto, ThorBangMQ and the inter-node link."""
