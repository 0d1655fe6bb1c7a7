"""Records how far the demo model moves in each lossy type of GGUF files, for tests/gguf/test_divergence.py.

Run `python scripts/record_gguf_divergence.py` from the repository's root, on a processor with VNNI and bf16, as
docs/models.md says of its numbers; no package is needed beside those of the tests. Writes
tests/models/reference/gguf_divergence.json, which scripts/models_page.py puts into the page.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
from tests.support.gguf_divergence import LOSSY_TYPES, RECORDED, divergences_of  # noqa: E402


def main() -> None:
    """Measure each type and write the file."""
    found = {}
    for type_name in LOSSY_TYPES:
        with tempfile.TemporaryDirectory() as directory:
            measured = divergences_of(type_name, Path(directory))
        found[type_name] = {name: float(f"{value:.4g}") for name, value in measured.items()}
        sys.stderr.write(f"{type_name}: {found[type_name]}\n")
    RECORDED.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
