"""The answers to: which configuration to choose, and which machine leads."""
