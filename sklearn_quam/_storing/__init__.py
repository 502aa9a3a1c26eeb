"""How things are stored: as arrays and plain values of declared kinds, never as code."""
