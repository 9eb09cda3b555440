"""Records in, answers out: opens no database and imports no torch."""
