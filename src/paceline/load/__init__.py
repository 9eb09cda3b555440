"""When to send, and what came of it: arrivals, the load generator, its own limits."""
