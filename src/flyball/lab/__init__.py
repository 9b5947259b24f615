"""The lab: runs experiments on brokers and keeps what nodes and clients recorded of them."""
