"""Searches for models that explain the training data but disagree at a sample."""
