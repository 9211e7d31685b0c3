"""What the FtTPO authors' code computes, kept to compare with and never the default.

Each module is the `published=True` form of the algorithm of the same name; that of XQL differs in
one loss and stands in `xql`.
"""
