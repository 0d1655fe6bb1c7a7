// The AI SDK with its provider for Anthropic's API against a server that runs the demo model.
// Usage: node ai-sdk-anthropic.mjs http://127.0.0.1:8080 ; ends with 1 if anything is not as it should be.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, jsonSchema, streamText, tool } from "ai";

const baseURL = process.argv[2];
assert.ok(baseURL, "usage: node ai-sdk-anthropic.mjs BASE_URL");

const anthropic = createAnthropic({ baseURL: `${baseURL}/v1`, apiKey: process.env.DRAGOMAN_API_KEY ?? "none" });
const model = anthropic("default");
const hello = { model, prompt: "Hello!", maxOutputTokens: 24, maxRetries: 0 };
const weather = tool({
  description: "Get the weather in a city",
  inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" } }, required: ["city"] }),
});

const checks = {
  async "a whole text"() {
    const answer = await generateText({ ...hello, system: "Answer briefly." });
    assert.ok(answer.text.length > 0);
    assert.ok(answer.usage.outputTokens > 0);
  },
  async "a streamed text"() {
    const answer = streamText({ ...hello, temperature: 0 });
    let text = "";
    for await (const piece of answer.textStream) text += piece;
    assert.ok(text.length > 0);
    assert.equal(text, await answer.text);
    assert.ok(["stop", "length"].includes(await answer.finishReason));
  },
  async "a tool call, whole and streamed"() {
    const asked = { ...hello, maxOutputTokens: 80, tools: { get_weather: weather }, toolChoice: "required" };
    const streamed = streamText(asked);
    await streamed.consumeStream();
    for (const calls of [(await generateText(asked)).toolCalls, await streamed.toolCalls]) {
      assert.ok(calls.length > 0);
      assert.equal(calls[0].toolName, "get_weather");
      assert.equal(typeof calls[0].input.city, "string");
    }
  },
  async "reasoning"() {
    const answer = await generateText({
      ...hello,
      maxOutputTokens: 300,
      providerOptions: { anthropic: { thinking: { type: "enabled", budgetTokens: 1024 } } },
    });
    assert.ok(answer.reasoningText.length > 0);
  },
  async "an error"() {
    await assert.rejects(generateText({ ...hello, model: anthropic("nobody") }), /not found/i);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ok: ${name}`);
}
