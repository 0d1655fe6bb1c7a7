#!/usr/bin/env bash
# An offline batch: the requests of questions.jsonl, in OpenAI's format, are answered without a server; then they are shown.
#
# Install: nothing
# Run:     bash examples/batch/batch.sh               (answers.jsonl is written where you are; another name: the first argument)
# Stopped in the middle, the same command goes on. Another model: bash examples/batch/batch.sh answers.jsonl --model MODEL
set -euo pipefail

answers=${1:-answers.jsonl}
dragoman batch "$(dirname "$0")/questions.jsonl" "$answers" "${@:2}"

python3 - "$answers" <<'END'
import json
import sys

for line in open(sys.argv[1], encoding="utf-8"):
    answer = json.loads(line)
    if (response := answer["response"]) is None or response["status_code"] != 200:
        print(f"{answer['custom_id']}: failed: {answer['error'] or response['body']}")
        continue
    choice = response["body"]["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    print(f"{answer['custom_id']}: {text.strip()}")
END
