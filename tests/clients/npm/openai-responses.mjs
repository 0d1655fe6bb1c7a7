// OpenAI's own package for JavaScript, Responses API, against a server that runs the demo model.
// Usage: node openai-responses.mjs http://127.0.0.1:8080 ; ends with 1 if anything is not as it should be.
import assert from "node:assert/strict";
import OpenAI from "openai";

const baseURL = process.argv[2];
assert.ok(baseURL, "usage: node openai-responses.mjs BASE_URL");

const light = {
  type: "function",
  name: "set_light",
  description: "Switch a light on",
  parameters: {
    type: "object",
    properties: { room: { enum: ["kitchen", "bath"] } },
    required: ["room"],
    additionalProperties: false,
  },
  strict: true,
};

function checksOf(client) {
  const hello = { model: "default", input: "Hello!", max_output_tokens: 24, temperature: 0 };
  const forced = { ...hello, max_output_tokens: 80, tools: [light], tool_choice: { type: "function", name: "set_light" } };
  return {
    async "a whole response, fetched and gone on from"() {
      const made = await client.responses.create(hello);
      assert.ok(made.output_text.length > 0);
      assert.ok(made.usage.output_tokens > 0);
      assert.equal((await client.responses.retrieve(made.id)).output_text, made.output_text);
      const after = await client.responses.create({ ...hello, input: "And now?", previous_response_id: made.id });
      assert.equal(after.previous_response_id, made.id);
      const items = [];
      for await (const item of client.responses.inputItems.list(after.id, { order: "asc", limit: 2 })) items.push(item.role);
      assert.deepEqual(items, ["user", "assistant", "user"]);
      await client.responses.delete(made.id);
      await assert.rejects(client.responses.retrieve(made.id), OpenAI.NotFoundError);
    },
    async "a streamed response"() {
      const stream = client.responses.stream(hello);
      let text = "";
      stream.on("response.output_text.delta", (event) => (text += event.delta));
      const made = await stream.finalResponse();
      assert.equal(made.output_text, text);
      assert.equal(text, (await client.responses.create(hello)).output_text);
    },
    async "a call, whole and streamed, and its output"() {
      for (const made of [await client.responses.create(forced), await client.responses.stream(forced).finalResponse()]) {
        const call = made.output.find((item) => item.type === "function_call");
        assert.equal(call.name, "set_light");
        assert.ok(["kitchen", "bath"].includes(JSON.parse(call.arguments).room));
        const output = { type: "function_call_output", call_id: call.call_id, output: "on" };
        const after = await client.responses.create({ ...hello, input: [output], previous_response_id: made.id });
        assert.ok(after.output.length > 0);
      }
    },
    async "an answer in a schema"() {
      const format = { type: "json_schema", name: "light", schema: light.parameters, strict: true };
      const made = await client.responses.parse({ ...hello, max_output_tokens: 60, text: { format } });
      assert.ok(["kitchen", "bath"].includes(JSON.parse(made.output_text).room));
    },
    async "an error"() {
      await assert.rejects(client.responses.create({ ...hello, tools: [{ type: "web_search" }] }), OpenAI.BadRequestError);
    },
  };
}

for (const route of ["v1", "v3"]) {
  const apiKey = process.env.DRAGOMAN_API_KEY ?? "none";
  const client = new OpenAI({ baseURL: `${baseURL}/${route}`, apiKey, maxRetries: 0 });
  for (const [name, check] of Object.entries(checksOf(client))) {
    await check();
    console.log(`openai responses /${route}: ${name}`);
  }
}
