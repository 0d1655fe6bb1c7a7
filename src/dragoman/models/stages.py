"""The stages of loading a model, by the names that progress reports use."""

from __future__ import annotations

BUILDING = "building the graph"
MAPPING = "mapping weights"
READING = "reading the graph"
COMPILING = "compiling"
WARMING_UP = "warming up"

READING_STAGES = (BUILDING, MAPPING, READING)
"""Stages in which a model's files are read, or what was kept of them."""
