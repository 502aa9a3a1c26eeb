"""How the training loss bends around the given weights."""
