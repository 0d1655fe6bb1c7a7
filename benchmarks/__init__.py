"""Measurements, run by hand on an otherwise idle machine; never part of the tests."""
