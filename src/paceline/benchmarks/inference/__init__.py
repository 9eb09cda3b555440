"""Benchmarks of running a model forward."""
