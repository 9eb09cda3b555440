"""Whether one side of a comparison differs from another, by how much, and how sure that is."""
