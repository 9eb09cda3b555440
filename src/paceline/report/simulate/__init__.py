"""The answer to: how scheduling policies compare."""
