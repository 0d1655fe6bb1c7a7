"""The features that people bring from other servers, each with the tests that show it: the table in docs/migration.md.

Does: hold the rows, make the table. Does not: run anything. `python -m tests.support.features` prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Feature:
    """A feature: how others call it, what it is here, and `path::test` of each test that shows it."""

    name: str
    elsewhere: str
    here: str
    tests: tuple[str, ...]


_BOUNDS = "tests/server/test_thinking_bounds.py::"
_LLAMACPP = "tests/e2e/test_llamacpp.py::"
_SILENCE = "tests/server/test_silence.py::"
_BATCHES = "tests/server/test_batches.py::"
_BACKGROUND = "tests/server/test_responses_background.py::"
_POOLING = "tests/server/test_pooling_service.py::"
_CLASSES = "tests/dialects/test_classification_requests.py::"

FEATURES = (
    Feature(
        "reasoning ends at a budget, and the answer follows",
        "`thinking_token_budget` (vLLM), `reasoning_budget` (llama.cpp), `thinking.budget_tokens` (Anthropic)",
        "the same, and `reasoning.max_tokens`; `--reasoning-budget`",
        (
            f"{_BOUNDS}test_the_answer_follows_after_so_many_tokens_of_reasoning",
            "tests/e2e/test_thinking.py::test_anthropics_client_gets_a_block_of_thinking_that_is_as_long",
        ),
    ),
    Feature(
        "reasoning that repeats itself ends",
        "vLLM ends the whole request (`repetition_detection`)",
        "the reasoning ends and the answer follows; content ends on request",
        (
            f"{_BOUNDS}test_reasoning_that_repeats_itself_ends_and_the_answer_follows",
            f"{_BOUNDS}test_content_that_repeats_itself_ends_where_that_is_asked_for",
        ),
    ),
    Feature(
        "DRY, XTC and top-n sigma",
        "fields of llama.cpp's `/completion`",
        "fields of every API that accepts extra ones",
        ("tests/dialects/test_samplers.py::test_every_field_has_its_effect",),
    ),
    Feature(
        "waiting streams are kept alive",
        "comments (llama.cpp), `ping` (Anthropic)",
        "the same, with `--keep-alive-seconds`; off by default",
        (f"{_SILENCE}test_official_clients_do_not_notice",),
    ),
    Feature(
        "progress of the prompt",
        "`return_progress` (llama.cpp)",
        "the same, with the place in the queue and the expected time",
        (f"{_SILENCE}test_streams_tell_those_who_ask_how_far_their_prompt_is",),
    ),
    Feature(
        "models are loaded by name, and unloaded when idle",
        "Ollama, `--models-dir` (llama.cpp's router)",
        "`--models-dir`, `--memory-gb`, `--idle-unload`, Ollama's `keep_alive`",
        (
            "tests/server/test_models_by_name.py::test_every_operation_loads_the_model_that_its_body_names",
            "tests/server/test_models_by_name.py::test_ollamas_client_loads_keeps_and_unloads",
        ),
    ),
    Feature(
        "fill in the middle for editors",
        "`/infill` (llama.cpp)",
        "the same; llama.vim and llama.vscode run unchanged",
        (f"{_LLAMACPP}test_llama_vim_fills_a_gap", f"{_LLAMACPP}test_llama_vscode_fills_a_gap_in_several_ways"),
    ),
    Feature(
        "llama.cpp's own names on OpenAI's routes",
        "`n_predict`, `samplers`, `grammar`, ... (llama.cpp)",
        "the same",
        (
            "tests/dialects/test_llamacpp_names.py::test_every_name_has_its_effect",
            "tests/dialects/test_llamacpp_names.py::test_samplers_that_are_not_listed_are_off_whatever_the_model_says",
        ),
    ),
    Feature(
        "LM Studio's `/api/v0`",
        "LM Studio",
        "the same, and its `ttl`",
        (
            "tests/server/test_lmstudio_routes.py::test_an_answer_is_openais_with_statistics",
            "tests/server/test_models_by_name.py::test_ttl_says_how_long_a_model_stays_that_was_loaded_for_a_call",
        ),
    ),
    Feature(
        "the vision part of a GGUF model in its own file",
        "`--mmproj` (llama.cpp)",
        "the same, or next to the model",
        (
            "tests/models/test_mmproj.py::test_it_sees_what_the_checkpoint_sees",
            "tests/models/test_mmproj.py::test_a_file_that_is_named_sees_wherever_it_lies_or_the_model_is_refused",
        ),
    ),
    Feature(
        "files and batches",
        "`/v1/files`, `/v1/batches` (OpenAI), `/v1/messages/batches` (Anthropic)",
        "the same, after all other requests; `--store-dir`",
        (
            f"{_BATCHES}test_a_batch_from_upload_to_answers",
            f"{_BATCHES}test_a_message_batch_from_requests_to_results",
            f"{_BATCHES}test_a_process_that_is_killed_loses_no_answer_and_repeats_none",
        ),
    ),
    Feature(
        "responses in the background, and resumed streams",
        "`background`, `starting_after` (OpenAI)",
        "the same",
        (
            f"{_BACKGROUND}test_a_response_is_polled_until_it_is_there",
            f"{_BACKGROUND}test_a_stream_is_resumed_where_it_broke_off",
        ),
    ),
    Feature(
        "shares and priorities of keys",
        "gateways in front",
        "`priority`, `share`, `background` in `--api-key-file`",
        (
            "tests/engine/test_background.py::test_a_flood_in_the_background_costs_a_stream_a_twentieth",
            "tests/engine/schedule/test_fair_queue.py::test_a_caller_gets_as_many_turns_as_its_share_says",
        ),
    ),
    Feature(
        "prompts that survive a restart",
        "slots saved by hand (llama.cpp), LMCache (vLLM on GPUs)",
        "`--prefix-store-gb`, with the same bits",
        (
            "tests/e2e/test_kept_prompts.py::"
            "test_a_restart_forgets_only_what_was_to_be_in_memory_alone_and_usage_tells_the_rest",
            "tests/engine/stored_prefixes/test_stored_oracle.py::test_every_request_gets_the_tokens_of_a_naive_loop",
        ),
    ),
    Feature(
        "classification",
        "`/classify` (vLLM), `/predict` (TEI)",
        "the same",
        (
            f"{_CLASSES}test_classify_tells_probabilities_as_vllm_has_them",
            f"{_POOLING}test_labels_are_those_of_transformers",
        ),
    ),
    Feature(
        "task adapters inside an embedding model",
        "`task` (Jina's API)",
        "the same; also `prompt_name`",
        (f"{_POOLING}test_similarity_is_that_of_the_tasks_that_search",),
    ),
    Feature(
        "sparse vectors and token vectors",
        "`/embed_sparse`, `/embed_all` (TEI), `/pooling` (vLLM)",
        "the same; ColBERT models rerank",
        (
            f"{_POOLING}test_weights_of_words_are_those_of_sentence_transformers",
            f"{_POOLING}test_vectors_of_tokens_are_those_of_sentence_transformers",
        ),
    ),
    Feature(
        "long documents are reranked in pieces",
        "OpenVINO Model Server's `/v3/rerank`",
        "the same; `max_chunks_per_doc` on the other paths",
        (f"{_POOLING}test_the_best_piece_of_a_long_document_counts",),
    ),
    Feature(
        "a socket instead of a port; a prefix for all paths",
        "`--uds` (vLLM), `--api-prefix` (llama.cpp)",
        "the same; `--unix-socket`, `--path-prefix`",
        (
            "tests/server/test_places.py::test_a_socket_of_the_machine_is_made_and_removed",
            "tests/server/test_places.py::test_paths_begin_with_the_prefix",
        ),
    ),
)


def table() -> str:
    """The table, as Markdown."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "| feature | elsewhere | what it is here | shown by |"
    yield "|---|---|---|---|"
    for one in FEATURES:
        yield f"| {one.name} | {one.elsewhere} | {one.here} | {', '.join(f'`{test}`' for test in one.tests)} |"


if __name__ == "__main__":
    sys.stdout.write(table())
