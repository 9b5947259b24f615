"""The protocol-independent broker: durable engine, topology, authority, flow control and memory accounting."""
