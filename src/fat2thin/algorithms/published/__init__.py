"""What the FtTPO authors' code computes, kept to compare with and never the default.

Each module is the `published=True` form of the algorithm of the same name; those of XQL and SPOT
are short and stand beside the corrected ones.
"""
