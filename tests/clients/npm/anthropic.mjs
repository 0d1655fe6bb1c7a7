// Anthropic's own package for JavaScript against a server that runs the demo model.
// Usage: node anthropic.mjs http://127.0.0.1:8080 ; ends with 1 if anything is not as it should be.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";

const baseURL = process.argv[2];
assert.ok(baseURL, "usage: node anthropic.mjs BASE_URL");

const client = new Anthropic({ baseURL, apiKey: process.env.DRAGOMAN_API_KEY ?? "none", maxRetries: 0 });
const [{ id: model }] = (await client.models.list()).data;
const hello = { model, max_tokens: 24, messages: [{ role: "user", content: "Hello!" }] };
const weather = {
  name: "get_weather",
  description: "Get the weather in a city",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
};
const forced = { ...hello, max_tokens: 80, tools: [weather], tool_choice: { type: "tool", name: "get_weather" } };

const checks = {
  async "a whole message"() {
    const message = await client.messages.create(hello);
    assert.equal(message.type, "message");
    assert.ok(message.content[0].text.length > 0);
    assert.ok(message.usage.output_tokens > 0);
    assert.equal(message.id, `msg_${message._request_id}`);
  },
  async "a streamed message"() {
    const stream = client.messages.stream(hello);
    let text = "";
    stream.on("text", (piece) => (text += piece));
    const message = await stream.finalMessage();
    assert.equal(message.content[0].text, text);
    assert.ok(["end_turn", "max_tokens"].includes(message.stop_reason));
  },
  async "a tool call, whole and streamed"() {
    for (const message of [await client.messages.create(forced), await client.messages.stream(forced).finalMessage()]) {
      const use = message.content.find((block) => block.type === "tool_use");
      assert.equal(message.stop_reason, "tool_use");
      assert.equal(use.name, "get_weather");
      assert.equal(typeof use.input.city, "string");
    }
  },
  async "a tool's result"() {
    const { content } = await client.messages.create(forced);
    const results = content
      .filter((block) => block.type === "tool_use")
      .map((use) => ({ type: "tool_result", tool_use_id: use.id, content: "sunny, 21 degrees" }));
    const messages = [...forced.messages, { role: "assistant", content }, { role: "user", content: results }];
    const answer = await client.messages.create({ ...hello, tools: [weather], messages });
    assert.ok(answer.content.length > 0);
  },
  async "thinking"() {
    const message = await client.messages
      .stream({ ...hello, max_tokens: 300, thinking: { type: "adaptive" } })
      .finalMessage();
    assert.equal(message.content[0].type, "thinking");
    assert.ok(message.content[0].signature.length > 0);
  },
  async "counted tokens"() {
    const { input_tokens } = await client.messages.countTokens({ model, messages: hello.messages });
    const { usage } = await client.messages.create({ ...hello, max_tokens: 1 });
    assert.equal(input_tokens, usage.input_tokens + usage.cache_read_input_tokens);
  },
  async "errors of the client's own classes"() {
    await assert.rejects(client.messages.create({ ...hello, model: "nobody" }), Anthropic.NotFoundError);
    await assert.rejects(client.messages.create({ ...hello, max_tokens: -1 }), (error) => {
      assert.ok(error instanceof Anthropic.BadRequestError);
      assert.equal(error.error.error.type, "invalid_request_error");
      return true;
    });
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok: ${name}`);
}
