"""The answer to: since when a metric is different."""
