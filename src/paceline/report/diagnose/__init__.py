"""The answer to: which nodes are defective."""
