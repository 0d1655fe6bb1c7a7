"""`python -m dragoman` is the `dragoman` command."""

from __future__ import annotations

import sys

from dragoman.cli import main

sys.exit(main())
