"""What holds for all tests."""
