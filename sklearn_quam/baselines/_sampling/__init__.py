"""Weights drawn once by fit: chains and descents, as pure functions of their state."""
