"""The engine: queues, consumers and unacked messages in memory, without sockets, SQL or a clock."""
