"""Where each millisecond of a step goes, and what would make it faster."""
