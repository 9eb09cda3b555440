"""Paceline's own server: the open inference protocol over HTTP and gRPC, with dynamic batching."""
