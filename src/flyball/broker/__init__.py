"""The message broker: protocols, engine, store, and what makes several nodes one."""
