"""Tests that a model computes correctly on this machine: the same in any company, and as fast as memory allows."""
