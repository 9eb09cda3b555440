"""The command line: one file per verb; names with an underscore are helpers."""
