// The current request as code: curl, Python, JavaScript. Keys are never part of it, only the name of a variable.

const KEY_VARIABLE = "DRAGOMAN_API_KEY";

/** Parameters that OpenAI's library knows; it sends the others from `extra_body`. */
const KNOWN = new Set([
  "model", "messages", "prompt", "input", "instructions", "stream", "stream_options", "max_tokens", "max_completion_tokens",
  "max_output_tokens", "temperature", "top_p", "n", "stop", "seed", "frequency_penalty", "presence_penalty", "logit_bias",
  "logprobs", "top_logprobs", "tools", "tool_choice", "parallel_tool_calls", "response_format", "reasoning_effort", "include",
  "store", "text", "reasoning", "truncation", "metadata", "user", "suffix", "echo", "best_of",
]);

/** `context`: {base, shape, needsKey}; `base` is the server's address without a slash at the end. */
export const LANGUAGES = { curl, python, javascript };

function curl(request, { base, needsKey }) {
  const headers = { "Content-Type": "application/json", ...request.headers };
  const lines = [`curl -N ${quoted(base + request.path)}`];
  for (const [name, value] of Object.entries(headers)) lines.push(`  -H ${quoted(`${name}: ${value}`)}`);
  if (needsKey) lines.push(`  -H "Authorization: Bearer $${KEY_VARIABLE}"`);
  lines.push(`  -d ${quoted(JSON.stringify(request.body, null, 2))}`);
  return lines.join(" \\\n");
}

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

// --- Python ----------------------------------------------------------------------------------------------------------

function python(request, context) {
  const call = { chat: "chat.completions", completion: "completions", responses: "responses" }[context.shape];
  if (call && !request.path.startsWith("/invocations")) return openAiPython(request, context, call);
  return httpPython(request, context);
}

function openAiPython(request, { base, needsKey }, call) {
  const named = Object.entries(request.body).filter(([name]) => KNOWN.has(name));
  const others = Object.fromEntries(Object.entries(request.body).filter(([name]) => !KNOWN.has(name)));
  if (Object.keys(others).length) named.push(["extra_body", others]);
  const root = base + request.path.slice(0, request.path.indexOf("/", 1));
  const lines = [
    ...(needsKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${literal(root)}, api_key=${needsKey ? `os.environ["${KEY_VARIABLE}"]` : '"none"'})`,
    `answer = client.${call}.create(`,
    ...named.map(([name, value]) => `    ${name}=${literal(value, 1)},`),
    ")",
  ];
  return [...lines, ...openAiReading(call, request.body.stream)].join("\n");
}

function openAiReading(call, isStreamed) {
  if (call === "responses") {
    if (!isStreamed) return ["print(answer.output_text)"];
    return ["for event in answer:", '    if event.type == "response.output_text.delta":', '        print(event.delta, end="", flush=True)'];
  }
  const text = call === "completions" ? "text" : `${isStreamed ? "delta" : "message"}.content`;
  if (!isStreamed) return [`print(answer.choices[0].${text})`];
  return ["for chunk in answer:", "    for choice in chunk.choices:", `        print(choice.${text} or "", end="", flush=True)`];
}

function httpPython(request, { base, needsKey }) {
  const headers = Object.entries(request.headers).map(([name, value]) => `${literal(name)}: ${literal(value)}`);
  if (needsKey) headers.push(`"Authorization": f"Bearer {os.environ['${KEY_VARIABLE}']}"`);
  return [
    ...(needsKey ? ["import os", ""] : []),
    "import httpx",
    "",
    `body = ${literal(request.body)}`,
    `headers = {${headers.join(", ")}}`,
    `with httpx.stream("POST", ${literal(base + request.path)}, json=body, headers=headers, timeout=None) as answer:`,
    "    for text in answer.iter_text():",
    '        print(text, end="", flush=True)',
  ].join("\n");
}

/** A JSON value as Python writes it. */
function literal(value, depth = 0) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value)
    ? value.map((one) => literal(one, depth + 1))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, depth + 1)}`);
  const line = `${open}${parts.join(", ")}${close}`;
  if (line.length <= 88 && !line.includes("\n")) return line;
  const indent = "    ".repeat(depth + 1);
  return `${open}\n${parts.map((part) => `${indent}${part},`).join("\n")}\n${"    ".repeat(depth)}${close}`;
}

// --- JavaScript ------------------------------------------------------------------------------------------------------

function javascript(request, { base, needsKey }) {
  const headers = { "Content-Type": "application/json", ...request.headers };
  const lines = Object.entries(headers).map(([name, value]) => `    ${JSON.stringify(name)}: ${JSON.stringify(value)},`);
  if (needsKey) lines.push(`    Authorization: \`Bearer \${process.env.${KEY_VARIABLE}}\`,`);
  const body = JSON.stringify(request.body, null, 2).replaceAll("\n", "\n  ");
  return [
    `const answer = await fetch(${JSON.stringify(base + request.path)}, {`,
    '  method: "POST",',
    "  headers: {",
    ...lines,
    "  },",
    `  body: JSON.stringify(${body}),`,
    "});",
    "const decoder = new TextDecoder();",
    "for await (const piece of answer.body) {",
    "  console.log(decoder.decode(piece, { stream: true }));",
    "}",
  ].join("\n");
}
