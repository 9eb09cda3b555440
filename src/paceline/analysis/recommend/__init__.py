"""Which of the measured configurations to take: the best that meets the SLO, why, and what would change that."""
