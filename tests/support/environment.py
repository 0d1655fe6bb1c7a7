"""Keeps the variables that a developer exports out of tests of the command line."""

from __future__ import annotations

import os

import pytest

PREFIXES = ("OPTION_", "SERVING_", "SAGEMAKER_", "HF_", "MAX_", "DRAGOMAN_", "API_KEY")


def forget_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(PREFIXES):
            monkeypatch.delenv(name)
