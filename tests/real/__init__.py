"""Networks of packages that people use; ``make test-networks`` runs them in their environment."""
