// The packages of OpenAI and Ollama and the AI SDK against a server with a model `embedder`.
// Usage: node embeddings.mjs http://127.0.0.1:8080 known.json ; ends with 1 if anything is not as it should be. The file says which
// vectors (`vectors`) the model makes of which texts (`texts`).
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createOpenAI } from "@ai-sdk/openai";
import { embed, embedMany } from "ai";
import { Ollama } from "ollama";
import OpenAI from "openai";

const [baseURL, file] = process.argv.slice(2);
assert.ok(file, "usage: node embeddings.mjs BASE_URL KNOWN_JSON");
const { texts, vectors } = JSON.parse(await readFile(file, "utf-8"));
const apiKey = process.env.DRAGOMAN_API_KEY ?? "none";
const model = "embedder";

function check(made, expected) {
  assert.equal(made.length, expected.length);
  for (const [row, vector] of expected.entries()) {
    assert.equal(made[row].length, vector.length);
    for (const [index, value] of vector.entries()) assert.ok(Math.abs(made[row][index] - value) < 1e-4, `[${row}][${index}]`);
  }
}

const checks = {
  async "openai"() {
    for (const route of ["v1", "v3"]) {
      const client = new OpenAI({ baseURL: `${baseURL}/${route}`, apiKey, maxRetries: 0 });
      for (const more of [{}, { encoding_format: "float" }]) {
        const { data, usage } = await client.embeddings.create({ model, input: texts, ...more });
        check(data.map((item) => item.embedding), vectors);
        assert.ok(usage.prompt_tokens > 0);
      }
      const short = await client.embeddings.create({ model, input: texts[0], dimensions: 8 });
      assert.equal(short.data[0].embedding.length, 8);
      await assert.rejects(client.embeddings.create({ model, input: texts[0], dimensions: 4000 }), OpenAI.BadRequestError);
    }
  },
  async "ollama"() {
    const client = new Ollama({ host: baseURL, headers: { Authorization: `Bearer ${apiKey}` } });
    check((await client.embed({ model, input: texts })).embeddings, vectors);
    assert.deepEqual((await client.show({ model })).capabilities, ["embedding"]);
  },
  async "the AI SDK"() {
    const embedding = createOpenAI({ baseURL: `${baseURL}/v1`, apiKey }).embedding(model);
    check((await embedMany({ model: embedding, values: texts })).embeddings, vectors);
    check([(await embed({ model: embedding, value: texts[0] })).embedding], vectors.slice(0, 1));
  },
};

for (const [name, check] of Object.entries(checks)) {
  await check();
  console.log(`embeddings: ${name}`);
}
