"""The broker that all protocols share: the engine made durable, topology, authority, flow control and memory."""
