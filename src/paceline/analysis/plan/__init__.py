"""Which layout to train a model in: memory and time of each from formulas, without running any."""
