"""The explanation of a step, for people and for programs."""
