"""What is given: the network inside an estimator, and how it runs with other weights."""
