"""What estimators check: what is refused, what is warned about, and whether networks agree."""
