// Ollama's own package for JavaScript against a server that runs the demo model.
// Usage: node ollama.mjs http://127.0.0.1:8080 ; ends with 1 if anything is not as it should be.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const host = process.argv[2];
assert.ok(host, "usage: node ollama.mjs BASE_URL");

const key = process.env.DRAGOMAN_API_KEY;
const client = new Ollama({ host, headers: key ? { Authorization: `Bearer ${key}` } : {} });
const [{ model }] = (await client.list()).models;
const options = { temperature: 0, num_predict: 24 };
const messages = [{ role: "user", content: "Hello!" }];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "Get the weather in a city",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};

function checkEnd(last) {
  assert.equal(last.done, true);
  assert.ok(["stop", "length"].includes(last.done_reason));
  assert.ok(last.eval_count > 0 && last.prompt_eval_count > 0);
  for (const name of ["total_duration", "load_duration", "prompt_eval_duration", "eval_duration"]) {
    assert.ok(Number.isInteger(last[name]) && last[name] >= 0, name);
  }
}

const checks = {
  async "a prompt, whole and streamed"() {
    const whole = await client.generate({ model, prompt: "Hello!", options });
    assert.ok(whole.response.length > 0);
    checkEnd(whole);
    let text = "";
    let last;
    for await (last of await client.generate({ model, prompt: "Hello!", options, stream: true })) text += last.response;
    assert.equal(text, whole.response);
    checkEnd(last);
  },
  async "a conversation, whole and streamed"() {
    const whole = await client.chat({ model, messages, options });
    assert.equal(whole.message.role, "assistant");
    checkEnd(whole);
    let text = "";
    for await (const part of await client.chat({ model, messages, options, stream: true })) text += part.message.content;
    assert.equal(text, whole.message.content);
  },
  async "a tool call with its arguments as an object"() {
    const asked = [{ role: "user", content: "What is the weather in Paris?" }];
    const call = { model, messages: asked, tools: [weather], options: { temperature: 0, num_predict: 80 } };
    const { message, prompt_eval_count } = await client.chat(call);
    const [{ function: called }] = message.tool_calls;
    assert.equal(called.name, "get_weather");
    assert.equal(typeof called.arguments.city, "string");
    const result = { role: "tool", tool_name: called.name, content: "sunny" };
    const after = await client.chat({ ...call, messages: [...asked, message, result] });
    assert.ok(after.prompt_eval_count > prompt_eval_count);
    checkEnd(after);
  },
  async "an answer that follows a schema"() {
    const format = { type: "object", properties: { age: { type: "integer" } }, required: ["age"] };
    const call = { model, messages, format, think: false, options: { temperature: 0, num_predict: 120 } };
    assert.equal(typeof JSON.parse((await client.chat(call)).message.content).age, "number");
  },
  async "lists and descriptions"() {
    assert.equal((await client.ps()).models[0].name, model);
    const shown = await client.show({ model });
    assert.ok(shown.capabilities.includes("completion"));
    assert.ok((await client.version()).version);
  },
  async "a stream that is given up"() {
    const long = { type: "array", items: { type: "integer" }, minItems: 300 }; // which cannot have come as a whole yet
    const stream = await client.chat({ model, messages, format: long, options: { num_predict: 1000 }, stream: true });
    await assert.rejects(async () => {
      for await (const _ of stream) stream.abort();
    }, { name: "AbortError" });
  },
  async "errors"() {
    await assert.rejects(client.generate({ model: "nobody", prompt: "x" }), {
      status_code: 404,
      message: "model 'nobody' not found",
    });
    await assert.rejects(client.pull({ model: "nobody" }), { status_code: 400, message: /^pull is not offered here/ });
    await assert.rejects(client.embed({ model, input: "x" }), { status_code: 400, message: /does not embed/ });
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok   ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAIL ${name}\n${error.stack}`);
  }
}
process.exit(failed ? 1 : 0);
