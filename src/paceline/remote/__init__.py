"""How other hosts are reached: a remote shell, the agent it starts there, and the messages between."""
