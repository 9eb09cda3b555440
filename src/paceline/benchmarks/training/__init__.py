"""Benchmarks of training a model."""
