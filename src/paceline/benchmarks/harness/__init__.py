"""Benchmarks of Paceline itself."""
