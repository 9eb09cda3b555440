"""The leader's HTTP API: who may ask, how much, and what is answered."""
