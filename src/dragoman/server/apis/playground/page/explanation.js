// What `POST /explain` says of the current request.

import { make } from "./elements.js";
import { readJson, Refused } from "./server.js";

/** Ask and show. The answer to a question that is no longer the newest is dropped. */
export class Explanation {
  constructor(node) {
    this.node = node;
    this.number = 0;
  }

  async show(request) {
    this.number += 1;
    const { number } = this;
    let nodes;
    try {
      const { path, method, headers, body } = request;
      nodes = told(await readJson("explain", { method: "POST", body: { path, method, headers, body } }));
    } catch (error) {
      const needsScope = error instanceof Refused && (error.status === 401 || error.status === 403);
      nodes = [make("p", { class: "note" }, needsScope ? "Explaining needs a key that opens the scope debug." : `Not explained: ${error.message}`)];
    }
    if (number === this.number) this.node.replaceChildren(...nodes);
  }
}

function told(found) {
  const facts = [
    ["API", found.api], ["Operation", found.operation], ["Model", found.model], ["Adapter", found.adapter],
    ["Streams", found.stream === null ? null : found.stream ? "yes" : "no"],
  ].filter(([, value]) => value);
  return [
    found.refusal ? refusal(found.refusal) : null,
    make("dl", { class: "facts" }, facts.flatMap(([name, value]) => [make("dt", null, name), make("dd", null, value)])),
    ...found.prompts.map(prompt),
    found.ignored.length ? section("Without effect", list(found.ignored.map((one) => [one.name, one.why]))) : null,
    found.parameters.length ? section("Who decides what", parameters(found.parameters)) : null,
    found.limits ? section("Limits", list(limits(found.limits))) : null,
    ...found.notes.map((text) => make("p", { class: "note" }, text)),
  ].filter((node) => node !== null);
}

const section = (title, ...nodes) => make("section", null, make("h2", null, title), ...nodes);

const list = (pairs) => make("dl", { class: "facts" }, pairs.flatMap(([name, value]) => [make("dt", null, name), make("dd", null, value)]));

function refusal(one) {
  return make("div", { class: "failure", role: "alert" },
    make("strong", null, `Would be refused with ${one.status}`), make("p", null, one.message));
}

function prompt(one) {
  const words = [`${one.tokens} tokens`, `at most ${one.max_tokens} to follow`, one.pictures ? `${one.pictures} pictures` : ""];
  return section("As the model sees it",
    make("pre", { tabindex: "0", "aria-label": "The prompt as the model sees it" }, one.text),
    make("p", { class: "note" }, words.filter(Boolean).join(" · ")));
}

function parameters(rows) {
  const shown = (value) => (value === null ? "none" : typeof value === "string" ? value : JSON.stringify(value));
  // What the request itself decides is what one looks for.
  const order = [...rows].sort((a, b) => Number(b.source === "request") - Number(a.source === "request"));
  return make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parameters and who decides them" },
    make("table", { class: "plain-table" },
      make("thead", null, make("tr", null, ["Parameter", "Value", "Decided by"].map((text) => make("th", { scope: "col" }, text)))),
      make("tbody", null, order.map((one) => make("tr", { class: one.source === "request" ? "chosen" : null },
        make("th", { scope: "row" }, one.name), make("td", null, shown(one.value)), make("td", null, one.source))))));
}

function limits(one) {
  const pairs = [
    ["Context", `${one.context_tokens} tokens`],
    ["Body", `${Math.round(one.body_bytes / 1048576)} MiB`],
    ["Time", one.timeout_s === null ? "no limit" : `${one.timeout_s} s`],
    ["In flight", `${one.requests_in_flight} of ${one.requests_allowed}`],
  ];
  return pairs;
}
