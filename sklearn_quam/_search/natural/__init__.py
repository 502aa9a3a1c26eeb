"""Natural search: each step is the cheapest change towards the target, by natural gradients.

The curvature of the training loss is measured once; no step needs a gradient of it. The cost of a
model is measured forward only, on the most influential training samples.
"""
