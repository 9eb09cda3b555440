"""What links between devices and hosts can do: pairs, collectives, networks."""
