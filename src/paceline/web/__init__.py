"""The pages that a leader serves: what people look at, rendered on the server."""
