#!/usr/bin/env bash
# curl: one question by seven APIs of the same server.
#
# Install: curl
# Run:     dragoman serve                             (in another terminal)
#          bash examples/clients/curl.sh "What is a river?"
# Elsewhere, or another model: DRAGOMAN_URL=http://host:port DRAGOMAN_MODEL=name
set -euo pipefail

url=${DRAGOMAN_URL:-http://127.0.0.1:8080}
model=${DRAGOMAN_MODEL:-demo}
question=${1:-What is a river?}

# ask NAME PATH BODY: an error of the server stops the script; $question must not have quotes or backslashes in it.
ask() {
    printf '%s\n' "== $1: POST $2"
    curl --silent --show-error --fail-with-body --header 'Content-Type: application/json' --data "$3" "$url$2"
    printf '\n'
}

messages='[{"role": "user", "content": "'$question'"}]'
ask "OpenAI chat" /v1/chat/completions '{"model": "'"$model"'", "messages": '"$messages"', "max_tokens": 24}'
ask "OpenAI Responses" /v1/responses '{"model": "'"$model"'", "input": "'"$question"'", "max_output_tokens": 24}'
ask "Anthropic" /v1/messages '{"model": "'"$model"'", "messages": '"$messages"', "max_tokens": 24}'
ask "Ollama" /api/chat '{"model": "'"$model"'", "messages": '"$messages"', "stream": false, "options": {"num_predict": 24}}'
ask "LMI" /invocations '{"inputs": "'"$question"'", "parameters": {"max_new_tokens": 24}}'
ask "Text Generation Inference" /generate '{"inputs": "'"$question"'", "parameters": {"max_new_tokens": 24}}'
ask "plain text" /api/generate-one '{"id": 1, "prompt": "'"$question"'", "maxLength": 24}'
