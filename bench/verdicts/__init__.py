"""What the product says, against synthetic truth: one file for each kind of sentence, each yields cells of the table.

A module here has `cells(replicates, seed)`, and its name is the part's: `python -m bench verdicts means`. Whatever it
measures is the product's own code; it has no arithmetic of its own but the truth.
"""
