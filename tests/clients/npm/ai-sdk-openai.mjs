// The AI SDK with its provider for OpenAI, whose default model call is Responses, against a server with the demo model.
// Usage: node ai-sdk-openai.mjs http://127.0.0.1:8080 ; ends with 1 if anything is not as it should be.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, jsonSchema, Output, streamText, tool } from "ai";

const baseURL = process.argv[2];
assert.ok(baseURL, "usage: node ai-sdk-openai.mjs BASE_URL");

const openai = createOpenAI({ baseURL: `${baseURL}/v1`, apiKey: process.env.DRAGOMAN_API_KEY ?? "none" });
const model = openai("default");
const hello = { model, prompt: "Hello!", maxOutputTokens: 24, maxRetries: 0 };
const room = {
  type: "object",
  properties: { room: { type: "string", enum: ["kitchen", "bath"] } },
  required: ["room"],
  additionalProperties: false,
};
const rooms = [];
const light = tool({
  description: "Switch a light on",
  inputSchema: jsonSchema(room),
  execute: async (input) => {
    rooms.push(input.room);
    return `the light in the ${input.room} is on`;
  },
});

const checks = {
  async "a whole text"() {
    const answer = await generateText({ ...hello, system: "Answer briefly." });
    assert.ok(answer.text.length > 0);
    assert.ok(answer.usage.outputTokens > 0);
    assert.match(answer.response.id, /^resp_/);
  },
  async "a streamed text"() {
    const answer = streamText({ ...hello, temperature: 0 });
    let text = "";
    for await (const piece of answer.textStream) text += piece;
    assert.ok(text.length > 0);
    assert.equal(text, await answer.text);
    assert.ok(["stop", "length"].includes(await answer.finishReason));
  },
  async "a tool loop, whose second step refers to the items of the first"() {
    const prepareStep = ({ stepNumber }) => ({ toolChoice: stepNumber ? "none" : "required" });
    const asked = { ...hello, maxOutputTokens: 80, tools: { light }, stopWhen: stepCountIs(2), prepareStep };
    const whole = await generateText(asked);
    assert.equal(whole.steps.length, 2);
    assert.equal(whole.steps[0].toolCalls[0].toolName, "light");
    const streamed = streamText(asked);
    await streamed.consumeStream();
    assert.equal((await streamed.steps).length, 2);
    assert.ok(rooms.length >= 2 && rooms.every((one) => ["kitchen", "bath"].includes(one)));
  },
  async "an answer in a schema"() {
    const output = Output.object({ schema: jsonSchema(room) });
    const answer = await generateText({ ...hello, maxOutputTokens: 60, output });
    assert.ok(["kitchen", "bath"].includes(answer.output.room));
    const streamed = streamText({ ...hello, maxOutputTokens: 60, output });
    let last;
    for await (last of streamed.partialOutputStream);
    assert.ok(["kitchen", "bath"].includes(last.room));
  },
  async "its calls of chat and completions"() {
    for (const other of [openai.chat("default"), openai.completion("default")]) {
      const asked = { ...hello, model: other, temperature: 0 };
      const streamed = streamText(asked);
      await streamed.consumeStream();
      assert.equal(await streamed.text, (await generateText(asked)).text);
      assert.ok((await streamed.usage).outputTokens > 0);
    }
  },
  async "an error"() {
    await assert.rejects(generateText({ ...hello, tools: { search: openai.tools.webSearch({}) } }), /web_search/);
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`ai-sdk openai: ${name}`);
}
