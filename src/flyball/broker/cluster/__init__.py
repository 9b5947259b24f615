"""A domain of nodes that governs itself: it places clients, grows, shrinks and repairs its clustered queues."""
