"""Control: laws that turn measurements into actions, the models to design them from, and proofs of their stability.

Pure computation: no socket, no file, no clock. Only `loop` awaits; the caller provides its sensor and actuator.
"""
