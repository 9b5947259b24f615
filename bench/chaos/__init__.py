"""Real nodes, a real PostgreSQL and real clients, and everything that can happen to them; every answer is checked."""
