"""A network cut in two: what is the same for all models, and what runs for each of them."""
