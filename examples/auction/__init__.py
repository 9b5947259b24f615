"""An auction site after RUBiS: what admission control is tried on. Starlette in front of PostgreSQL, with a pool."""
