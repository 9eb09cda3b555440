"""Training over many devices at once: data x tensor x pipeline, the mesh applied from outside the model."""
