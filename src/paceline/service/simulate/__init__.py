"""Schedules worked out without machines: workloads, policies and what becomes of them."""
