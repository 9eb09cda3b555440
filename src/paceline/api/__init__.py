"""What `import paceline` offers, and what the command line stands on: runs, results, comparisons, jobs."""
