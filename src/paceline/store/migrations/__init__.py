"""The steps from one schema version to the next; a released step is never changed.

A new step is a new file in `versions`, and its number the last of `REVISIONS` in `store/location.py`.
"""
