"""Has schemathesis read /openapi.json and call everything in it, from an environment of its own.

Does: run the tool against a real server; say how it ended. Does not: install it (`make fuzz` does). Bodies of answers are
left to `run`: the tool expects the schema of an event stream to describe its events, ours describes their data. Statuses
that the document names for refusals, 501 and 503, are no faults.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.fuzz.target import running_target

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "allow_header_conformance",
    "unsupported_method",
)

CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 501, 503]
"""


def run_schemathesis(executable: str, num_examples: int, max_s: int, seed: int) -> list[str]:
    """What is wrong, [] if nothing is; the tool tells details on its own output."""
    with running_target(has_hosting=False) as target, tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "schemathesis.toml"
        config.write_text(CONFIG, encoding="utf-8")
        command = [
            executable,
            "--config-file",
            str(config),
            "run",
            f"{target.server.url}/openapi.json",
            "--checks",
            ",".join(CHECKS),
        ]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(num_examples)]
        command += ["--max-time", str(max_s), "--seed", str(seed), "--request-timeout", "60", "--continue-on-failure"]
        command += ["--no-shrink", "--suppress-health-check", "all", "--warnings", "off"]
        code = subprocess.run(command, check=False).returncode
        left = target.idle_state()
    problems = [f"schemathesis ended with {code}"] if code else []
    problems += [f"left at the end: {left}"] if left else []
    return problems + list(dict.fromkeys(target.defects.texts))
