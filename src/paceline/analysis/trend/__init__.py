"""The history of a metric over runs: its series, and where they changed."""
