// OpenAI's own package for JavaScript, chat and text completions, against a server that runs the demo model.
// Usage: node openai-chat.mjs http://127.0.0.1:8080 ; ends with 1 if anything is not as it should be.
import assert from "node:assert/strict";
import OpenAI from "openai";

const baseURL = process.argv[2];
assert.ok(baseURL, "usage: node openai-chat.mjs BASE_URL");

const parameters = {
  type: "object",
  properties: { room: { type: "string", enum: ["kitchen", "bath"] } },
  required: ["room"],
  additionalProperties: false,
};
const light = { type: "function", function: { name: "set_light", description: "Switch a light on", parameters, strict: true } };

function checksOf(client) {
  const messages = [{ role: "user", content: "Hello!" }];
  const hello = { model: "default", messages, max_tokens: 24, temperature: 0 };
  const forced = { ...hello, max_tokens: 80, tools: [light], tool_choice: "required" };
  const prompt = { model: "default", prompt: "The weather is", max_tokens: 12, temperature: 0 };
  return {
    async "a chat, whole and streamed"() {
      const whole = await client.chat.completions.create(hello);
      const { content } = whole.choices[0].message;
      assert.ok(content.length > 0);
      let text = "";
      let usage;
      const options = { stream: true, stream_options: { include_usage: true } };
      for await (const chunk of await client.chat.completions.create({ ...hello, ...options })) {
        text += chunk.choices[0]?.delta.content ?? "";
        usage = chunk.usage ?? usage;
      }
      assert.equal(text, content);
      assert.deepEqual(usage, whole.usage);
      assert.equal((await client.chat.completions.stream(hello).finalChatCompletion()).choices[0].message.content, content);
    },
    async "calls of a function, whole and streamed, and their results"() {
      const counted = { ...forced, stream_options: { include_usage: true } };
      const streamed = client.chat.completions.stream(counted).finalChatCompletion();
      for (const made of [await client.chat.completions.create(forced), await streamed]) {
        const { message, finish_reason } = made.choices[0];
        assert.equal(finish_reason, "tool_calls");
        const results = message.tool_calls.map((call) => {
          assert.equal(call.function.name, "set_light");
          assert.ok(["kitchen", "bath"].includes(JSON.parse(call.function.arguments).room));
          return { role: "tool", tool_call_id: call.id, content: "it is on" };
        });
        const after = await client.chat.completions.create({ ...hello, tools: [light], messages: [...messages, message, ...results] });
        assert.ok(after.usage.prompt_tokens > made.usage.prompt_tokens);
      }
    },
    async "the loop that the package goes round by itself"() {
      const rooms = [];
      const called = ({ room }) => rooms.push(room) && `the light in the ${room} is on`;
      const tool = { ...light, function: { ...light.function, function: called, parse: JSON.parse } };
      const runner = client.chat.completions.runTools({ ...forced, tools: [tool] }, { maxChatCompletions: 2 });
      await runner.done();
      assert.ok(rooms.length > 0 && rooms.every((room) => ["kitchen", "bath"].includes(room)));
    },
    async "an answer in a schema"() {
      const response_format = { type: "json_schema", json_schema: { name: "light", schema: parameters, strict: true } };
      const made = await client.chat.completions.create({ ...hello, max_tokens: 60, response_format });
      assert.ok(["kitchen", "bath"].includes(JSON.parse(made.choices[0].message.content).room));
    },
    async "a completion, whole and streamed"() {
      const { text } = (await client.completions.create(prompt)).choices[0];
      let pieces = "";
      for await (const chunk of await client.completions.create({ ...prompt, stream: true })) pieces += chunk.choices[0].text;
      assert.equal(pieces, text);
      const scored = (await client.completions.create({ ...prompt, logprobs: 2, echo: true })).choices[0];
      assert.equal(scored.text, prompt.prompt + text);
      assert.equal(scored.logprobs.tokens.join(""), scored.text);
    },
    async "a stream that is given up"() {
      const stream = await client.chat.completions.create({ ...hello, max_tokens: 400, stream: true });
      for await (const _ of stream) break;
      assert.ok(stream.controller.signal.aborted);
    },
    async "errors of the package's own classes"() {
      await assert.rejects(client.chat.completions.create({ ...hello, model: "nobody" }), OpenAI.NotFoundError);
      await assert.rejects(client.completions.create({ ...prompt, temperature: 7 }), (error) => {
        assert.ok(error instanceof OpenAI.BadRequestError);
        assert.match(error.message, /temperature/);
        return true;
      });
    },
  };
}

for (const route of ["v1", "v3"]) {
  const apiKey = process.env.DRAGOMAN_API_KEY ?? "none";
  const client = new OpenAI({ baseURL: `${baseURL}/${route}`, apiKey, maxRetries: 0 });
  for (const [name, check] of Object.entries(checksOf(client))) {
    await check();
    console.log(`openai /${route}: ${name}`);
  }
}
