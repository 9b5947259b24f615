"""The engine: queues, readers and leases in memory, without sockets, SQL or a clock."""
