"""Which benchmarks to run on which nodes, from what earlier checks found."""
