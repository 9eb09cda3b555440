"""Figures that others published, and tables that put a run next to them."""
