"""Control: laws that turn measurements into actions, models to design them from, and the proof that they hold.

Pure computation: no socket, no file, no clock. Only `loop` awaits; its sensor and its actuator come from others.
"""
