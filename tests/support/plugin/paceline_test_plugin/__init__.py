"""A provider as a third party would write one: benchmarks that misbehave on purpose."""
