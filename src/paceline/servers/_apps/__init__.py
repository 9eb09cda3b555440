"""Programs that run in a server's own environment: they know that server, numpy and the engine, never Paceline."""
