// Everything that is asked of the server but answers: models, descriptions, health; and the key that calls carry.

const KEY = "dragoman-key";

/** Tells "keywanted" when a call was refused for want of a key, and "keychanged". */
export const keyring = new EventTarget();

let kept = "";
try {
  kept = sessionStorage.getItem(KEY) ?? "";
} catch {
  // storage is switched off: the key is kept as long as the page
}

export const currentKey = () => kept;

export function changeKey(text) {
  kept = text.trim();
  try {
    if (kept) sessionStorage.setItem(KEY, kept);
    else sessionStorage.removeItem(KEY);
  } catch {
    // as above
  }
  keyring.dispatchEvent(new Event("keychanged"));
}

/** An answer that is an error. */
export class Refused extends Error {
  constructor(status, message, headers) {
    super(message);
    this.status = status;
    this.headers = headers;
  }
}

/** Call the server. Paths are relative to the page, so that a proxy may put a prefix before them. Throws Refused. */
export async function call(path, { method = "GET", headers = {}, body, signal } = {}) {
  const sent = { ...headers };
  if (kept) sent["Authorization"] = `Bearer ${kept}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  const answer = await fetch(path.replace(/^\//, ""), {
    method, headers: sent, signal, cache: "no-store",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  if (answer.ok) return answer;
  if (answer.status === 401) keyring.dispatchEvent(new Event("keywanted"));
  throw new Refused(answer.status, messageIn(await answer.text()) || answer.statusText, answer.headers);
}

export async function readJson(path, options) {
  return (await call(path, options)).json();
}

/** The message of an error's body, whichever API's shape it has. */
export function messageIn(text) {
  try {
    const value = JSON.parse(text);
    return messageOf(Array.isArray(value) ? value[0] : value) || text;
  } catch {
    return text.trim();
  }
}

export function messageOf(value) {
  if (typeof value === "string") return value;
  if (!value || typeof value !== "object") return "";
  return messageOf(value.error) || messageOf(value.message) || messageOf(value.Message) || messageOf(value.detail);
}

/** Each model with the names of its adapters: `[{name, maxLength, adapters}]`. */
export async function readModels() {
  const { data } = await readJson("v1/models");
  const models = data.filter((one) => !one.parent);
  return models.map((one) => ({
    name: one.id,
    maxLength: one.max_model_len ?? null,
    adapters: data.filter((other) => other.parent === one.id).map((other) => other.id),
  }));
}

/** What a small model samples with that has no generation_config.json: at temperature 1 it loses the thread. Source: Ollama. */
const USUAL = [["temperature", 0.8], ["top_k", 40], ["top_p", 0.9]];

/** What a model can do, and the sampling where neither it nor a person says another: `{chat, tools, vision, thinking, embeds, usual}`. */
export async function readAbilities(name) {
  const shown = await readJson("api/show", { method: "POST", body: { model: name } });
  const can = new Set(shown.capabilities ?? []);
  return {
    chat: Boolean(shown.template),
    tools: can.has("tools"),
    vision: can.has("vision"),
    thinking: can.has("thinking"),
    embeds: can.has("embedding") && !can.has("completion"),
    usual: new Map(/^(temperature|top_k|top_p|min_p) /m.test(shown.parameters ?? "") ? [] : USUAL),
  };
}

/** Whether the server is ready, and how far what it loads is: `{isReady, words}`. */
export async function readHealth() {
  const answer = await fetch("ping", { cache: "no-store" });
  const statuses = Object.entries(await answer.json());
  const loading = statuses.find(([, one]) => one.status === "PENDING");
  if (answer.ok) return { isReady: true, words: "ready" };
  if (!loading) return { isReady: false, words: answer.status === 503 ? "not ready" : "failed" };
  const [name, { stage, fraction }] = loading;
  const share = fraction === undefined ? "" : ` ${Math.round(fraction * 100)} %`;
  return { isReady: false, words: `loading ${name}${stage ? `: ${stage}` : ""}${share}` };
}

/** Milliseconds until the server no longer runs the request of that id, null if it may not be asked or takes too long. */
export async function timeUntilEnded(id, patienceMs = 5000) {
  const began = performance.now();
  while (performance.now() - began < patienceMs) {
    let running;
    try {
      running = await readJson("debug/requests");
    } catch {
      return null;
    }
    if (!running.some((one) => one.id === id)) return performance.now() - began;
    await new Promise((resolve) => { setTimeout(resolve, 50); });
  }
  return null;
}
