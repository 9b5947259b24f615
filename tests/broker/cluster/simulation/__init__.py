"""A domain of several nodes in one process: the real code, with time, network, store and chance under control.

The same seed does the same again, to the byte.
"""
