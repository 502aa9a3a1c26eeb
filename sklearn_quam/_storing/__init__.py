"""How things are stored: as arrays and plain text, never as code."""
