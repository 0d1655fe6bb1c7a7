// What is sent: the same conversation or prompt in the words of each API.
//
// A message is {role: "user", text, pictures}, {role: "assistant", text, reasoning, calls: [{id, name, arguments}]} or
// {role: "tool", id, name, text}. Pictures are data URLs, arguments are JSON texts.

const NUM_ALTERNATIVES = 5;

/** The APIs in the order in which they are offered. `shape` names the reader of `stream.js`. */
export const APIS = [
  {
    name: "openai", title: "OpenAI",
    chat: { path: "/v1/chat/completions", shape: "chat", build: openAiChat, hasTokens: true },
    complete: { path: "/v1/completions", shape: "completion", build: openAiCompletion, hasTokens: true },
  },
  { name: "responses", title: "OpenAI Responses", chat: { path: "/v1/responses", shape: "responses", build: responses, hasTokens: true } },
  { name: "anthropic", title: "Anthropic Messages", chat: { path: "/v1/messages", shape: "anthropic", build: anthropic, hasTokens: false } },
  {
    name: "ollama", title: "Ollama",
    chat: { path: "/api/chat", shape: "ollama", build: ollamaChat, hasTokens: true },
    complete: { path: "/api/generate", shape: "ollama", build: ollamaGenerate, hasTokens: true },
  },
  {
    name: "lmi", title: "LMI",
    chat: { path: "/invocations", schemaHas: "messages", shape: "chat", build: lmiChat, hasTokens: true },
    complete: { path: "/invocations", schemaHas: "inputs", shape: "lmi", build: lmi, hasTokens: true },
  },
  {
    name: "ovms", title: "OpenVINO Model Server",
    chat: { path: "/v3/chat/completions", shape: "chat", build: openAiChat, hasTokens: true },
    complete: { path: "/v3/completions", shape: "completion", build: openAiCompletion, hasTokens: true },
  },
  { name: "tgi", title: "Text Generation Inference", complete: { path: "/generate_stream", shape: "lmi", build: tgi, hasTokens: true } },
  { name: "text", title: "Plain text", complete: { path: "/api/generate-one", shape: "text", build: plainText, hasTokens: false } },
];

/** Fields that the page itself decides; the parameters are all others. */
export const DECIDED = new Set([
  "messages", "prompt", "inputs", "input", "model", "model_name", "stream", "stream_options", "return_progress", "system", "instructions",
  "tools", "functions", "images", "parameters", "options", "id", "adapters", "adapter_id", "previous_response_id", "store",
]);

/**
 * The call for `ask`: {api, mode, model, adapter, isOnlyModel, messages, prompt, pictures, system, tools, values, wantsTokens,
 * isStreamed}. `values` are [{name, place, value}], `place` being the object that a parameter belongs into, "" the body.
 */
export function requestOf(ask) {
  const operation = ask.api[ask.mode];
  const { path = operation.path, headers = {}, body } = operation.build(ask);
  for (const { name, place, value } of ask.values) {
    if (!place) body[name] = value;
    else (body[place] ??= {})[name] = value;
  }
  return { method: "POST", path, headers, body };
}

const named = (ask) => ask.adapter || ask.model;
const withQuery = (path, ask) => (ask.isOnlyModel ? path : `${path}?model_name=${encodeURIComponent(ask.model)}`);
const isSystem = (ask) => ask.system.trim() !== "";
const base64 = (picture) => picture.slice(picture.indexOf(",") + 1);
const mediaType = (picture) => picture.slice(5, picture.indexOf(";"));

/** A call's arguments as an object, for APIs that have them so; what is no JSON object is an empty one. */
function objectOf(text) {
  try {
    const value = JSON.parse(text);
    return value && typeof value === "object" ? value : {};
  } catch {
    return {};
  }
}

// --- OpenAI, and those after it --------------------------------------------------------------------------------------

// Without a sign of an OpenAI client, `/v1/chat/completions` may answer in LMI's shape.
const OPENAI_HEADERS = { Accept: "text/event-stream" };

function openAiChat(ask) {
  const body = { model: named(ask), messages: openAiMessages(ask), ...streamed(ask) };
  if (ask.tools.length) body.tools = ask.tools.map((one) => ({ type: "function", function: one }));
  if (ask.wantsTokens) Object.assign(body, { logprobs: true, top_logprobs: NUM_ALTERNATIVES });
  return { headers: OPENAI_HEADERS, body };
}

function openAiCompletion(ask) {
  const body = { model: named(ask), prompt: ask.prompt, ...streamed(ask) };
  if (ask.wantsTokens) body.logprobs = NUM_ALTERNATIVES;
  return { body };
}

function lmiChat(ask) {
  const { body } = openAiChat(ask);
  delete body.model;
  if (ask.adapter) body.adapters = ask.adapter;
  return { path: withQuery("/invocations", ask), body };
}

const streamed = (ask) => (ask.isStreamed ? { stream: true, stream_options: { include_usage: true } } : {});

function openAiMessages(ask) {
  const system = isSystem(ask) ? [{ role: "system", content: ask.system }] : [];
  return [...system, ...ask.messages.map(openAiMessage)];
}

function openAiMessage(message) {
  if (message.role === "tool") return { role: "tool", tool_call_id: message.id, content: message.text };
  if (message.role === "assistant") {
    const calls = message.calls.map((one) => ({ id: one.id, type: "function", function: { name: one.name, arguments: one.arguments } }));
    return { role: "assistant", content: message.text || (calls.length ? null : ""), ...(calls.length ? { tool_calls: calls } : {}) };
  }
  if (!message.pictures.length) return { role: "user", content: message.text };
  const pictures = message.pictures.map((url) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: [...pictures, { type: "text", text: message.text }] };
}

// --- Responses -------------------------------------------------------------------------------------------------------

function responses(ask) {
  const body = { model: named(ask), input: ask.messages.flatMap(responseItems), store: false };
  if (ask.isStreamed) body.stream = true;
  if (isSystem(ask)) body.instructions = ask.system;
  if (ask.tools.length) body.tools = ask.tools.map((one) => ({ type: "function", ...one }));
  if (ask.wantsTokens) Object.assign(body, { include: ["message.output_text.logprobs"], top_logprobs: NUM_ALTERNATIVES });
  return { body };
}

function responseItems(message) {
  if (message.role === "tool") return [{ type: "function_call_output", call_id: message.id, output: message.text }];
  if (message.role === "assistant") {
    const said = message.text ? [{ role: "assistant", content: [{ type: "output_text", text: message.text }] }] : [];
    const calls = message.calls.map((one) => ({ type: "function_call", call_id: one.id, name: one.name, arguments: one.arguments }));
    return [...said, ...calls];
  }
  const pictures = message.pictures.map((url) => ({ type: "input_image", image_url: url }));
  return [{ role: "user", content: [...pictures, { type: "input_text", text: message.text }] }];
}

// --- Anthropic -------------------------------------------------------------------------------------------------------

function anthropic(ask) {
  const body = { model: named(ask), messages: anthropicMessages(ask.messages) };
  if (ask.isStreamed) body.stream = true;
  if (isSystem(ask)) body.system = ask.system;
  if (ask.tools.length) {
    body.tools = ask.tools.map(({ name, description, parameters }) => ({ name, description, input_schema: parameters ?? { type: "object" } }));
  }
  return { headers: { "anthropic-version": "2023-06-01" }, body };
}

/** Roles have to take turns there, so results of tools that follow each other are one message. */
function anthropicMessages(messages) {
  const turns = [];
  for (const message of messages) {
    const role = message.role === "assistant" ? "assistant" : "user";
    const blocks = anthropicBlocks(message);
    if (turns.at(-1)?.role === role) turns.at(-1).content.push(...blocks);
    else turns.push({ role, content: blocks });
  }
  return turns;
}

function anthropicBlocks(message) {
  const said = message.text ? [{ type: "text", text: message.text }] : [];
  if (message.role === "tool") return [{ type: "tool_result", tool_use_id: message.id, content: message.text }];
  if (message.role === "assistant") {
    const calls = message.calls.map((one) => ({ type: "tool_use", id: one.id, name: one.name, input: objectOf(one.arguments) }));
    return [...said, ...calls];
  }
  const pictures = message.pictures.map((url) => (
    { type: "image", source: { type: "base64", media_type: mediaType(url), data: base64(url) } }));
  return [...pictures, ...said];
}

// --- Ollama ----------------------------------------------------------------------------------------------------------

function ollamaChat(ask) {
  const system = isSystem(ask) ? [{ role: "system", content: ask.system }] : [];
  const body = { ...ollamaCommon(ask), messages: [...system, ...ask.messages.map(ollamaMessage)] };
  if (ask.tools.length) body.tools = ask.tools.map((one) => ({ type: "function", function: one }));
  return { body };
}

function ollamaGenerate(ask) {
  const body = { ...ollamaCommon(ask), prompt: ask.prompt };
  if (ask.pictures.length) body.images = ask.pictures.map(base64);
  return { body };
}

function ollamaCommon(ask) {
  const tokens = ask.wantsTokens ? { logprobs: true, top_logprobs: NUM_ALTERNATIVES } : {};
  return { model: named(ask), stream: ask.isStreamed, ...tokens };
}

function ollamaMessage(message) {
  if (message.role === "tool") return { role: "tool", tool_name: message.name, content: message.text };
  if (message.role === "assistant") {
    const calls = message.calls.map((one) => ({ function: { name: one.name, arguments: objectOf(one.arguments) } }));
    return { role: "assistant", content: message.text, ...(calls.length ? { tool_calls: calls } : {}) };
  }
  const images = message.pictures.length ? { images: message.pictures.map(base64) } : {};
  return { role: "user", content: message.text, ...images };
}

// --- LMI, TGI, plain text --------------------------------------------------------------------------------------------

function lmi(ask) {
  const body = { inputs: ask.prompt, parameters: detailed(ask) };
  if (ask.isStreamed) body.stream = true;
  if (ask.adapter) body.adapters = ask.adapter;
  return { path: withQuery("/invocations", ask), body };
}

function tgi(ask) {
  const body = { inputs: ask.prompt, parameters: detailed(ask) };
  if (ask.adapter) body.parameters.adapter_id = ask.adapter;
  return { path: withQuery(ask.isStreamed ? "/generate_stream" : "/generate", ask), body };
}

const detailed = (ask) => ({ details: true, ...(ask.wantsTokens ? { top_n_tokens: NUM_ALTERNATIVES } : {}) });

function plainText(ask) {
  const query = new URLSearchParams();
  if (!ask.isStreamed) query.set("stream", "false");
  if (!ask.isOnlyModel) query.set("model_name", ask.model);
  const path = `/api/generate-one${query.size ? `?${query}` : ""}`;
  return { path, body: { id: "playground", prompt: ask.prompt } };
}
