"""Where followers live, one file each: processes of the leader, nodes of a Ray cluster, jobs of Slurm."""
