"""Sizing: a simulation of the rolling engine's scheduler over measured step costs."""
