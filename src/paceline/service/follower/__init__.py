"""The side that measures: a worker, the process it starts for each attempt, and the spool between the two."""
