"""A recorded schedule is what the engine ran, and can be run again."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.serving.load import Workload
from benchmarks.serving.recording import RecordingRunner, copied, record, replay
from dragoman.engine.rolling import RollingConfig
from dragoman.engine.rolling.runner import ForwardBatch
from tests.engine.support.fake_runner import FakeRunner
