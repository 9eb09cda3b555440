"""Which of the measured configurations to take: the best that keeps a promise, why, and what would change that."""
