"""What to send: requests of many kinds, encoded before the clock runs."""
