"""A network cut in two: what is the same for all models, and what runs for each of them.

Nothing here changes anything outside the network's own private copy, so that threads may cut
networks while others run theirs.
"""
