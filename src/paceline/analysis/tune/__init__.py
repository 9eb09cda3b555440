"""The search for the best of many settings: which to try next, and what the trials have shown."""
