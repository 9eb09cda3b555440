"""Which nodes are defective, and why: rules over the results of many nodes, ours and SuperBench's."""
