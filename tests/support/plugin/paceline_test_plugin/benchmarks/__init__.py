"""One file per way to misbehave, and `nap`, which behaves."""
