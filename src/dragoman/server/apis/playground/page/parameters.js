// The parameters of an operation, with their ranges, as controls: made of what /openapi.json says, nothing is known here.

import { make } from "./elements.js";
import { DECIDED } from "./request.js";

/** Shown first, in this order; all others stand below, behind a filter. Names that an operation lacks are passed over. */
const COMMON = [
  "max_tokens", "max_output_tokens", "max_new_tokens", "maxLength", "num_predict", "do_sample", "temperature", "top_p",
  "top_k", "min_p", "seed", "stop", "stop_sequences", "frequency_penalty", "presence_penalty", "repetition_penalty",
  "repeat_penalty",
];
const LARGEST_SHOWN = 1_000_000; // bounds beyond it only say how numbers are stored
const WIDEST_SLIDER = 200;
const NEEDED = 256; // for parameters without which a call is refused: how long answers are

/** The schema of an operation's body. `has`: the field that tells it from other bodies of the same path. */
export function bodySchema(document, path, has) {
  const schema = resolved(document, document.paths[path].post.requestBody.content["application/json"].schema);
  if (!schema.anyOf || schema.properties) return schema;
  const choices = schema.anyOf.map((one) => resolved(document, one));
  return choices.find((one) => (one.required ?? []).includes(has)) ?? choices[0];
}

function resolved(document, schema) {
  let found = schema;
  while (found?.$ref) found = found.$ref.slice(2).split("/").reduce((place, step) => place[step], document);
  return found;
}

/** Every parameter: `[{name, place, kind, range, default, description, isNeeded, …}]`. */
export function describedParameters(document, schema) {
  const rows = [];
  for (const [name, field] of Object.entries(schema.properties)) {
    const isGroup = name === "parameters" || name === "options";
    const group = isGroup ? choicesOf(document, field).find((one) => one.properties) : null;
    if (group) {
      for (const [inner, part] of Object.entries(group.properties)) {
        if (!DECIDED.has(inner)) rows.push(described(document, inner, part, name, group));
      }
    } else if (!DECIDED.has(name)) {
      rows.push(described(document, name, field, "", schema));
    }
  }
  return rows;
}

const choicesOf = (document, field) => (field.anyOf ?? [field]).flatMap((one) => {
  const known = resolved(document, one);
  return known.anyOf && !known.properties ? choicesOf(document, known) : [known];
});

function described(document, name, field, place, owner) {
  const choices = choicesOf(document, field).filter((one) => one.type !== "null" && one.const !== "");
  return {
    name, place, ...kindOf(choices),
    default: field.default ?? null,
    description: (field.description ?? "").replaceAll("`", ""),
    isNeeded: (owner.required ?? []).includes(name),
  };
}

function kindOf(choices) {
  const typed = (type) => choices.find((one) => one.type === type);
  if (typed("boolean")) return { kind: "boolean" };
  const number = typed("integer") ?? typed("number");
  if (number) return { kind: "number", isInteger: number.type === "integer", ...boundsOf(number) };
  const words = choices.find((one) => one.enum)?.enum?.filter((one) => one !== null && one !== "");
  if (words && choices.length === 1) return { kind: "words", words };
  const list = typed("array");
  if (list && list.items?.type === "string") return { kind: "lines", range: list.maxItems ? `one per line, at most ${list.maxItems}` : "one per line" };
  if (choices.length === 1 && choices[0].type === "string") return { kind: "text", range: "" };
  return { kind: "json", takesText: Boolean(words || typed("string")), range: words ? `${words.join(", ")}, or JSON` : "JSON" };
}

function boundsOf(schema) {
  const { minimum, maximum, exclusiveMinimum, exclusiveMaximum } = schema;
  const bounds = { low: minimum ?? exclusiveMinimum, high: maximum ?? exclusiveMaximum };
  return {
    ...bounds,
    isLowOpen: exclusiveMinimum !== undefined,
    isHighOpen: exclusiveMaximum !== undefined,
    range: rangeText(bounds, exclusiveMinimum !== undefined, exclusiveMaximum !== undefined),
  };
}

function rangeText({ low, high }, isLowOpen, isHighOpen) {
  const top = high === undefined || high > LARGEST_SHOWN ? "" : `${isHighOpen ? "below" : "up to"} ${high}`;
  if (low === undefined || low < -LARGEST_SHOWN) return top || "any number";
  if (!isLowOpen && !isHighOpen && top) return `${low} to ${high}`;
  const bottom = isLowOpen ? `above ${low}` : `${low} or more`;
  return top ? `${isLowOpen ? bottom : `from ${low}`}, ${top}` : bottom;
}

/** The controls of one operation. */
export class Parameters {
  constructor(rows, onChange) {
    this.onChange = onChange;
    this.controls = rows.map((row) => new Control(row, () => this.changed()));
    const rank = (control) => { const at = COMMON.indexOf(control.row.name); return at < 0 ? COMMON.length : at; };
    const first = this.controls.filter((one) => rank(one) < COMMON.length).sort((a, b) => rank(a) - rank(b));
    const others = this.controls.filter((one) => rank(one) === COMMON.length);
    const filter = make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter parameters" });
    filter.addEventListener("input", () => {
      const word = filter.value.toLowerCase();
      for (const one of others) one.node.hidden = !`${one.row.name} ${one.row.description}`.toLowerCase().includes(word);
    });
    this.count = make("span", { class: "count" });
    this.reset = make("button", { type: "button", class: "plain", "aria-label": "Reset all parameters", onclick: () => this.clear() }, "Reset all");
    this.node = make("div", { class: "parameters" },
      make("div", { class: "row head" }, this.count, this.reset),
      first.map((one) => one.node),
      others.length ? make("details", { class: "quiet" }, make("summary", null, `${others.length} more`), filter, others.map((one) => one.node)) : null);
    this.changed(true);
  }

  /** Have these values sent, by name, where a person sets no other; with a temperature of 0 nothing is drawn, and none is sent. */
  choose(usual) {
    this.usual = usual;
    for (const one of this.controls) one.showUsual(this.has("temperature") ? usual.get(one.row.name) : undefined);
    this.changed(true);
  }

  has(name) {
    return this.controls.some((one) => one.row.name === name);
  }

  /** What differs from what the server would choose: `[{name, place, value}]`. */
  values() {
    const given = this.controls.map((one) => one.given()).filter((one) => one !== null);
    const isGreedy = given.some(({ name, value }) => (name === "temperature" && value === 0) || (name === "do_sample" && value === false));
    if (isGreedy || !this.usual?.size || !this.has("temperature")) return given;
    const usual = this.controls.filter((one) => !one.isSet && this.valueOf(one.row.name) !== undefined);
    return [...given, ...usual.map(({ row: { name, place } }) => ({ name, place, value: this.valueOf(name) }))];
  }

  /** The usual value of a parameter: APIs with `do_sample` draw only if that is true. */
  valueOf(name) {
    return name === "do_sample" ? true : this.usual.get(name);
  }

  /** The first control whose value the server would refuse, null if there is none. */
  problem() {
    return this.controls.find((one) => one.problem) ?? null;
  }

  clear() {
    for (const one of this.controls) one.clear();
    this.changed();
  }

  changed(isQuiet) {
    const count = this.controls.filter((one) => one.isSet).length;
    const usual = [...(this.usual ?? [])].filter(([name]) => this.has("temperature") && this.has(name)).map((one) => one.join(" "));
    this.count.textContent = count ? `${count} set` : usual.length ? `${usual.join(", ")}; all others as the server has them` : "All as the server has them";
    this.reset.hidden = !count;
    if (!isQuiet) this.onChange();
  }
}

/** One parameter. */
class Control {
  constructor(row, onChange) {
    this.row = row;
    this.problem = "";
    this.isSet = false;
    this.id = `parameter-${row.place ? `${row.place}-` : ""}${row.name}`;
    this.onChange = onChange;
    this.input = this.makeInput();
    this.slider = this.makeSlider();
    this.told = make("p", { class: "problem", role: "alert", hidden: true, "aria-label": `What is wrong with ${row.name}` });
    this.drop = make("button", { type: "button", class: "drop", hidden: true, "aria-label": `Reset ${row.name}`, title: "Reset", onclick: () => { this.clear(); this.onChange(); } }, "×");
    const words = [row.description, row.range].filter(Boolean).join(" · ");
    const about = make("p", { class: "note", id: `${this.id}-about` }, words);
    this.input.setAttribute("aria-describedby", about.id);
    this.node = make("div", { class: `parameter ${row.kind}${row.default === null ? " unknown" : ""}` },
      make("label", { class: "name", for: this.id }, row.name), this.drop, this.input, this.slider, this.told, about);
    this.input.addEventListener(this.input.tagName === "SELECT" ? "change" : "input", () => this.read());
    this.clear();
  }

  makeInput() {
    const { row } = this;
    const shared = { id: this.id, "aria-label": row.name };
    const usual = row.default === null ? "" : String(row.default);
    if (row.kind === "boolean") return select(shared, [["", usual ? `default (${usual})` : "default"], ["true", "true"], ["false", "false"]]);
    if (row.kind === "words") return select(shared, [["", usual ? `default (${usual})` : "default"], ...row.words.map((one) => [String(one), String(one)])]);
    if (row.kind === "number") return make("input", { ...shared, type: "number", step: "any", inputmode: "decimal", placeholder: usual || "default" });
    if (row.kind === "text") return make("input", { ...shared, type: "text", placeholder: usual || "default" });
    return make("textarea", { ...shared, rows: row.kind === "lines" ? 1 : 2, spellcheck: "false", class: row.kind === "json" ? "code" : null, placeholder: "default" });
  }

  makeSlider() {
    const { row } = this;
    if (row.kind !== "number" || row.low === undefined || row.high === undefined || row.high - row.low > WIDEST_SLIDER) return null;
    const step = row.isInteger ? 1 : (row.high - row.low) / 100;
    const slider = make("input", { type: "range", min: row.low, max: row.high, step, "aria-label": `${row.name}, slider` });
    slider.value = this.usual();
    slider.addEventListener("input", () => this.put(Number(Number(slider.value).toPrecision(6))));
    return slider;
  }

  /** Where the slider stands while nothing is set: at the default, or where that is not known as near to 0 as may be. */
  usual() {
    const { default: usual, low, high } = this.row;
    return this.chosen ?? usual ?? Math.max(low, Math.min(0, high));
  }

  /** Tell what is sent while nothing is set. */
  showUsual(value) {
    this.chosen = value;
    if (this.row.kind === "number") this.input.placeholder = String(value ?? this.row.default ?? "default");
    if (this.slider && !this.isSet) this.slider.value = this.usual();
  }

  put(value) {
    this.input.value = String(value);
    this.read();
  }

  clear() {
    this.input.value = this.row.isNeeded && this.row.kind === "number" ? String(NEEDED) : "";
    this.read(true);
  }

  read(isQuiet) {
    const text = this.input.value;
    this.isSet = text !== "" || this.input.validity?.badInput === true;
    this.value = null;
    this.problem = "";
    if (this.isSet) this.readText(text);
    this.drop.hidden = !this.isSet;
    this.told.hidden = !this.problem;
    this.told.textContent = this.problem;
    this.input.setAttribute("aria-invalid", this.problem ? "true" : "false");
    this.node.classList.toggle("set", this.isSet);
    if (this.slider) this.slider.value = this.isSet && !this.problem ? this.value : this.usual();
    if (!isQuiet) this.onChange();
  }

  readText(text) {
    const { kind, takesText, name } = this.row;
    if (kind === "number") this.readNumber(text);
    else if (kind === "boolean") this.value = text === "true";
    else if (kind === "lines") this.value = text.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
    else if (kind === "json") {
      try {
        this.value = JSON.parse(text);
      } catch {
        if (takesText) this.value = text;
        else this.problem = `${name} must be JSON`;
      }
    } else this.value = text;
  }

  readNumber(text) {
    const { name, low, high, isLowOpen, isHighOpen, isInteger, range } = this.row;
    const value = Number(text);
    const isBelow = low !== undefined && (isLowOpen ? value <= low : value < low);
    const isAbove = high !== undefined && (isHighOpen ? value >= high : value > high);
    if (text === "" || Number.isNaN(value)) this.problem = `${name} must be a number`;
    else if (isInteger && !Number.isInteger(value)) this.problem = `${name} must be a whole number`;
    else if (isBelow || isAbove) this.problem = `${name} must be ${range}`;
    else this.value = value;
  }

  given() {
    return this.isSet && !this.problem ? { name: this.row.name, place: this.row.place, value: this.value } : null;
  }
}

function select(attributes, options) {
  return make("select", attributes, options.map(([value, text]) => make("option", { value }, text)));
}
