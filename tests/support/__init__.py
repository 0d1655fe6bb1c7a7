"""Stand-ins and helpers shared by the tests."""
