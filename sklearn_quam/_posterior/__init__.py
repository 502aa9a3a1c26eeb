"""Predictions of plausible models: accumulated, measured, and returned chunk by chunk."""
