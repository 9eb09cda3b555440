"""Paceline's own speed, as ratios that hold on any machine: `python -m bench`."""
