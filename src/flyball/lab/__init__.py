"""The lab: runs experiments on brokers and stores the traces of nodes and clients."""
