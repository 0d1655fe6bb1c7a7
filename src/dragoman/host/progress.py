"""Receivers of loading reports, called on the threads that load."""

from __future__ import annotations

import logging
import time

from dragoman.engine.factory import Progress
from dragoman.models.stages import READING_STAGES
from dragoman.server.registry import LoadProgress, ModelRegistry

logger = logging.getLogger("dragoman.host")


def noted_progress(registry: ModelRegistry, name: str, bytes_total: int, shown: Progress) -> Progress:
    begin_s, bytes_read = time.monotonic(), 0

    def report(stage: str, fraction: float) -> None:
        nonlocal bytes_read
        if stage in READING_STAGES:  # several graphs may be read, each from its beginning
            bytes_read = max(bytes_read, int(fraction * bytes_total))
        registry.note_progress(name, LoadProgress(stage, fraction, bytes_read, bytes_total, begin_s))
        shown(stage, fraction)

    return report


def log_progress(name: str) -> Progress:
    """A receiver that logs each new stage of a model's load."""

    def report(stage: str, fraction: float) -> None:
        if fraction == 0.0:
            logger.info("model %s: %s", name, stage)

    return report
