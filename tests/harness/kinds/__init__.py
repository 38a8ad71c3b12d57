"""The kinds of tests that tests/run knows."""
