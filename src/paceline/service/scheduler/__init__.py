"""Two tiers: which follower a task goes to, and which task a follower takes; pure functions over states."""
