"""What makes several nodes one broker: membership, links between nodes, remote queues."""
