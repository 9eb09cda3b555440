"""What the processors can do: launching, multiplying, convolving."""
