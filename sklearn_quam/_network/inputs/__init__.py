"""How what a user passes as X becomes rows that a network takes, some at a time."""
