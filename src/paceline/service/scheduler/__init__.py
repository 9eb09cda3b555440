"""Two tiers: which follower a job goes to, and which job a follower takes; pure functions over states."""
