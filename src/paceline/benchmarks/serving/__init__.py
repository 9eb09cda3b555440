"""Serving: a model behind a server, and what its users get under load."""
