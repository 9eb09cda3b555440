"""What memory can do: copying, streaming, answering."""
