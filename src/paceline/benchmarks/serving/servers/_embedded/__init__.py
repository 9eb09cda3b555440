"""Paceline's own server: an HTTP server for the open inference protocol, with dynamic batching."""
