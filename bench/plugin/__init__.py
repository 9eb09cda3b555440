"""Benchmarks that only the benches of a leader use; they are a plug-in like any other."""
