"""What the cache of prompts tells one key of another: nothing, where keys are set."""

from __future__ import annotations

from hashlib import blake2b
from pathlib import Path
from typing import Any

import httpx

from tests.support.server_process import serve

SECRET = "The patient of room seven has been told that the operation is on Monday. " * 12


def test_cached_tokens_tell_a_key_of_its_own_prompts_only(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice: k-alice\nbob: k-bob\n", encoding="utf-8")
    with serve("--dtype", "f32", "--api-key-file", str(tmp_path / "keys")) as server:

        def num_cached(key: str, path: str = "/v1/completions", **fields: Any) -> int:
            asked = (
                {"prompt": SECRET} if path == "/v1/completions" else {"messages": [{"role": "user", "content": SECRET}]}
            )
            body = {"model": "demo", **asked, "max_tokens": 1, **fields}
            answer = httpx.post(f"{server.base_url}{path}", json=body, headers={"x-api-key": key}, timeout=60)
            usage = answer.raise_for_status().json()["usage"]
            details = usage.get("prompt_tokens_details", {}).get("cached_tokens")
            return int(usage["cache_read_input_tokens"] if details is None else details)

        assert num_cached("k-alice") == 0
        assert num_cached("k-alice") > 0
        assert num_cached("k-bob") == 0
        assert num_cached("k-bob") > 0
        owner = blake2b(b"key alice", digest_size=16).hexdigest()
        for salt in (owner, f"{owner}:", f"{owner}: ", "key alice"):
            assert num_cached("k-bob", cache_salt=salt) == 0
        assert num_cached("k-alice", "/v1/chat/completions") == 0
        assert num_cached("k-bob", "/v1/messages") == 0  # the same conversation
        assert num_cached("k-alice", "/v1/messages") > 0
