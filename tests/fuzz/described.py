"""Has schemathesis read /openapi.json and call everything in it, from an environment of its own.

Does: run the tool against a real server; say how it ended. Does not: install it (`make fuzz` does). Bodies of answers are
left to `run`: the tool expects the schema of an event stream to describe its events, ours describes their data.
"""

from __future__ import annotations

import subprocess

from tests.fuzz.target import running_target

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "allow_header_conformance",
    "unsupported_method",
)


def run_schemathesis(executable: str, num_examples: int, max_s: int) -> list[str]:
    """What is wrong, [] if nothing is; the tool tells details on its own output."""
    with running_target(has_hosting=False) as target:
        command = [executable, "run", f"{target.server.url}/openapi.json", "--checks", ",".join(CHECKS)]
        command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(num_examples)]
        command += ["--max-time", str(max_s), "--seed", "1", "--request-timeout", "60", "--continue-on-failure"]
        command += ["--no-shrink", "--suppress-health-check", "all", "--warnings", "off"]
        code = subprocess.run(command, check=False).returncode
        left = target.idle_state()
    problems = [f"schemathesis ended with {code}"] if code else []
    problems += [f"left at the end: {left}"] if left else []
    return problems + list(dict.fromkeys(target.defects.texts))
