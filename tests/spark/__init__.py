"""A package, so that tests here may have the names of those in tests/unit."""
