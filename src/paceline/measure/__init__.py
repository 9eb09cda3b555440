"""How a number is taken: clocks, steady state, stopping, memory, energy, peaks."""
