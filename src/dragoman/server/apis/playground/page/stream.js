// What comes back: the answers of all APIs, streamed or whole, as the same small pieces.
//
// A piece has any of: progress (as the server tells it, before all others), choice (0 if absent), text, reasoning, call {index, id, name, arguments}, tokens and alternatives
// (of all tokens, where an API tells them at the end), finish, usage {prompt, completion}, error.
// A token is {text, logprob, top: [{text, logprob}]}.

import { messageOf } from "./server.js";

/** The pieces of an answer, as they arrive. */
export async function* piecesOf(response, shape) {
  const read = READERS[shape]();
  for await (const value of valuesOf(response)) yield* read(value);
}

/** The JSON values of an answer, whatever frames them; texts where it is plain text. */
async function* valuesOf(response) {
  const type = (response.headers.get("content-type") ?? "").split(";")[0].trim();
  if (type === "text/event-stream") {
    for await (const block of partsOf(response, /\r?\n\r?\n/)) {
      const data = block.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trim()).join("\n");
      if (data && data !== "[DONE]") yield JSON.parse(data);
    }
  } else if (type === "application/jsonlines" || type === "application/x-ndjson") {
    for await (const line of partsOf(response, /\r?\n/)) if (line.trim()) yield JSON.parse(line);
  } else if (type === "text/plain") {
    yield* textsOf(response);
  } else {
    yield await response.json();
  }
}

async function* textsOf(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      yield decoder.decode(value, { stream: true });
    }
    yield decoder.decode();
  } finally {
    reader.releaseLock();
  }
}

async function* partsOf(response, separator) {
  let rest = "";
  for await (const text of textsOf(response)) {
    const parts = (rest + text).split(separator);
    rest = parts.pop();
    yield* parts;
  }
  if (rest.trim()) yield rest;
}

const READERS = {
  chat: () => chatPieces,
  completion: () => completionPieces,
  responses: () => responsePieces,
  anthropic: () => anthropicPieces,
  ollama: ollamaReader,
  lmi: lmiReader,
  text: () => (text) => (text ? [{ text }] : []),
};

// --- OpenAI ----------------------------------------------------------------------------------------------------------

const openAiUsage = (usage) => (usage ? { prompt: usage.prompt_tokens, completion: usage.completion_tokens } : undefined);

function* chatPieces(value) {
  if (value.prompt_progress) yield { progress: value.prompt_progress };
  if (value.error) yield { error: messageOf(value) };
  for (const choice of value.choices ?? []) {
    const said = choice.delta ?? choice.message ?? {};
    yield {
      choice: choice.index,
      text: said.content ?? "",
      reasoning: said.reasoning_content ?? said.reasoning ?? "",
      tokens: (choice.logprobs?.content ?? []).map(chatToken),
      finish: choice.finish_reason ?? undefined,
    };
    const calls = said.function_call ? [{ index: 0, function: said.function_call }] : said.tool_calls ?? [];
    for (const [place, call] of calls.entries()) {
      const { name, arguments: given = "" } = call.function;
      yield { choice: choice.index, call: { index: call.index ?? place, id: call.id, name, arguments: given } };
    }
  }
  if (value.usage) yield { usage: openAiUsage(value.usage) };
}

const chatToken = (one) => ({
  text: String(one.token),
  logprob: one.logprob,
  top: (one.top_logprobs ?? []).map((other) => ({ text: String(other.token), logprob: other.logprob })),
});

function* completionPieces(value) {
  if (value.prompt_progress) yield { progress: value.prompt_progress };
  if (value.error) yield { error: messageOf(value) };
  for (const choice of value.choices ?? []) {
    const { tokens = [], token_logprobs: logprobs = [], top_logprobs: tops = [] } = choice.logprobs ?? {};
    yield {
      choice: choice.index,
      text: choice.text ?? "",
      tokens: tokens.map((text, place) => ({
        text,
        logprob: logprobs[place],
        top: Object.entries(tops?.[place] ?? {}).map(([other, logprob]) => ({ text: other, logprob })),
      })),
      finish: choice.finish_reason ?? undefined,
    };
  }
  if (value.usage) yield { usage: openAiUsage(value.usage) };
}

// --- Responses -------------------------------------------------------------------------------------------------------

function* responsePieces(value) {
  switch (value.type) {
    case "response.output_text.delta":
      yield { text: value.delta, tokens: (value.logprobs ?? []).map(chatToken) };
      break;
    case "response.reasoning_text.delta":
    case "response.reasoning_summary_text.delta":
      yield { reasoning: value.delta };
      break;
    case "response.output_item.added":
      if (value.item.type === "function_call") {
        yield { call: { index: value.output_index, id: value.item.call_id, name: value.item.name, arguments: "" } };
      }
      break;
    case "response.function_call_arguments.delta":
      yield { call: { index: value.output_index, arguments: value.delta } };
      break;
    case "response.completed":
    case "response.incomplete":
    case "response.failed":
      yield* responseEnd(value.response);
      break;
    case "error":
      yield { error: messageOf(value) };
      break;
    default:
      if (value.object === "response") yield* wholeResponse(value);
  }
}

function* wholeResponse(value) {
  for (const [index, item] of value.output.entries()) {
    if (item.type === "function_call") {
      yield { call: { index, id: item.call_id, name: item.name, arguments: item.arguments } };
    } else if (item.type === "reasoning") {
      yield { reasoning: [...(item.content ?? []), ...(item.summary ?? [])].map((part) => part.text).join("") };
    } else {
      for (const part of item.content ?? []) yield { text: part.text, tokens: (part.logprobs ?? []).map(chatToken) };
    }
  }
  yield* responseEnd(value);
}

function* responseEnd(response) {
  const { usage, error, status, incomplete_details: why } = response;
  if (error) yield { error: messageOf(error) };
  yield {
    finish: why?.reason ?? status,
    usage: usage ? { prompt: usage.input_tokens, completion: usage.output_tokens } : undefined,
  };
}

// --- Anthropic -------------------------------------------------------------------------------------------------------

function* anthropicPieces(value) {
  switch (value.type) {
    case "message_start":
      yield { usage: { prompt: value.message.usage.input_tokens } };
      break;
    case "content_block_start":
      yield* anthropicBlock(value.content_block, value.index, true);
      break;
    case "content_block_delta": {
      const { text, thinking, partial_json: json } = value.delta;
      yield { text, reasoning: thinking, call: json === undefined ? undefined : { index: value.index, arguments: json } };
      break;
    }
    case "message_delta":
      yield { finish: value.delta.stop_reason, usage: { prompt: value.usage.input_tokens, completion: value.usage.output_tokens } };
      break;
    case "message":
      for (const [index, block] of value.content.entries()) yield* anthropicBlock(block, index, false);
      yield { finish: value.stop_reason, usage: { prompt: value.usage.input_tokens, completion: value.usage.output_tokens } };
      break;
    case "error":
      yield { error: messageOf(value) };
      break;
    default: // pings, and ends of blocks
  }
}

function* anthropicBlock(block, index, isBeginning) {
  if (block.type === "tool_use") {
    yield { call: { index, id: block.id, name: block.name, arguments: isBeginning ? "" : JSON.stringify(block.input) } };
  } else {
    yield { text: block.text, reasoning: block.thinking };
  }
}

// --- Ollama ----------------------------------------------------------------------------------------------------------

function ollamaReader() {
  let numCalls = 0;
  return function* read(value) {
    if (value.error) yield { error: messageOf(value) };
    const said = value.message ?? { content: value.response, thinking: value.thinking };
    yield { text: said.content, reasoning: said.thinking, tokens: (value.logprobs ?? []).map(chatToken) };
    for (const { function: called } of said.tool_calls ?? []) {
      const index = numCalls;
      numCalls += 1;
      yield { call: { index, id: `call_${index}`, name: called.name, arguments: JSON.stringify(called.arguments) } };
    }
    if (value.done) {
      yield { finish: value.done_reason, usage: { prompt: value.prompt_eval_count, completion: value.eval_count } };
    }
  };
}

// --- LMI and TGI -----------------------------------------------------------------------------------------------------

const lmiToken = (token, top = []) => ({
  text: token.text,
  logprob: token.log_prob ?? token.logprob,
  top: top.map((other) => ({ text: other.text, logprob: other.log_prob ?? other.logprob })),
});

function lmiReader() {
  return function* read(value) {
    const line = Array.isArray(value) ? value[0] : value;
    if (line.error) {
      yield { error: messageOf(line) };
      return;
    }
    const { token, details } = line;
    if (token) yield { text: token.text, tokens: [lmiToken(token, line.top_tokens)] };
    else yield { text: line.generated_text, tokens: (details?.tokens ?? []).map((one) => lmiToken(one)) };
    if (details) {
      yield {
        finish: details.finish_reason,
        usage: { prompt: details.input_length, completion: details.generated_tokens },
        alternatives: details.top_tokens?.map((top) => lmiToken({}, top).top),
      };
    }
  };
}
