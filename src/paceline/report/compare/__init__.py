"""The answer to: what changed between runs."""
