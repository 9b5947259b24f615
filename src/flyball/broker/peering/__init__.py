"""Several nodes as one broker: membership, links between nodes, remote queues."""
