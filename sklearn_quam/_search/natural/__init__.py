"""Natural search: each step is the cheapest change that brings the target nearer.

What the training data say about changes is measured once, as a curvature; no step needs a gradient
of the training loss. What a found model costs is measured forward only, on the rows that can tell.
"""
