"""A module that cannot be imported; everything beside it must work all the same."""

raise RuntimeError("this accelerator's licence has run out")
