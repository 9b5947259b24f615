"""A self-managing domain of nodes: places clients, and scales, rebalances and repairs its clustered queues."""
