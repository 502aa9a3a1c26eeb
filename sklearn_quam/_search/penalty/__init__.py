"""Penalty search, the algorithm of the paper."""
