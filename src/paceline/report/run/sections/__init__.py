"""The sections of a run's report that answer a question beyond its cases."""
