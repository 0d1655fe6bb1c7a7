// The page: puts the parts together, and is the only one that knows all of them.

import { Conversation } from "./conversation.js";
import { byId, copy, debounced, make } from "./elements.js";
import { Explanation } from "./explanation.js";
import { keep, kept } from "./keeping.js";
import { Meters } from "./meters.js";
import { Parameters, bodySchema, describedParameters } from "./parameters.js";
import { APIS, requestOf } from "./request.js";
import * as server from "./server.js";
import { LANGUAGES } from "./snippets.js";
import { piecesOf } from "./stream.js";
import { hide } from "./tokens.js";

const PROGRESS = "return_progress";
const NARROW = matchMedia("(max-width: 900px)");
const TABS = ["talk", "parameters", "code", "explain", "server"];
const BEGINNINGS = {
  chat: ["What is the weather in Paris?", "What is deep learning?", "Write a short story about the sea."],
  complete: ["The sea is", "Deep learning is", "Once upon a time"],
};
const EXAMPLE_TOOL = [{
  name: "get_weather",
  description: "Get the weather in a city",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
}];
const LONG = 200; // longer texts without a blank, as pictures are, are shown shortened
const HEALTH_MS = { ready: 15_000, loading: 700 };

const state = {
  models: [], abilities: null, document: null, isKeyNeeded: false, hasAskedForKey: false, isReady: false,
  api: APIS[0], mode: "chat", parameters: null, kept: new Map(), // parameters by operation: they outlive a look elsewhere
  pictures: [], running: null, tab: "talk", hasNoProgress: false,
};
const conversation = new Conversation(byId("answers"), byId("announcer"));
const explanation = new Explanation(byId("explanation"));
const meters = new Meters(byId("meters"));

// --- what is asked -------------------------------------------------------------------------------------------------------

function chosenModel() {
  return state.models.find((one) => one.name === byId("model").value) ?? { name: "", adapters: [], maxLength: null };
}

/** The tools of the text area. Throws Error saying what is wrong with them. */
function tools() {
  const text = byId("tools").value.trim();
  if (!text) return [];
  const value = JSON.parse(text);
  if (!Array.isArray(value)) throw new Error("the tools must be an array");
  const found = value.map((one) => one.function ?? one);
  if (!found.every((one) => typeof one?.name === "string")) throw new Error("every tool must have a name");
  return found;
}

function toolsOrNone() {
  try {
    byId("tools-problem").textContent = "";
    return tools();
  } catch (error) {
    byId("tools-problem").textContent = error instanceof SyntaxError ? "The tools must be JSON" : error.message;
    return [];
  }
}

function ask(messages, prompt, pictures) {
  const operation = state.api[state.mode];
  return requestOf({
    api: state.api, mode: state.mode, model: chosenModel().name, adapter: byId("adapter").value,
    isOnlyModel: state.models.length < 2, messages, prompt, pictures,
    system: byId("system").value, tools: state.mode === "chat" ? toolsOrNone() : [],
    values: state.parameters?.values() ?? [],
    wantsTokens: operation.hasTokens && byId("tokens").checked,
    isStreamed: byId("streaming").checked,
  });
}

/** The request that the next message would send, with a greeting where nothing was written yet. */
function nextRequest() {
  const text = byId("question").value || (conversation.messages.at(-1)?.role === "assistant" || !conversation.messages.length ? "Hello!" : "");
  const { pictures } = state;
  const more = text || pictures.length ? [{ role: "user", text, pictures }] : [];
  return ask([...conversation.messages, ...more], text || "Hello!", pictures);
}

// --- sending and stopping ------------------------------------------------------------------------------------------------

async function send() {
  if (state.running || !state.isReady) return;
  const field = byId("question");
  const message = { role: "user", text: field.value, pictures: state.pictures };
  if (!message.text.trim() && !message.pictures.length) return void field.focus();
  const problem = state.parameters?.problem();
  if (problem) {
    notice(problem.problem);
    choose("parameters");
    return void problem.input.focus();
  }
  notice("");
  conversation.forgetUnanswered();
  conversation.addQuestion(message, state.mode === "complete");
  field.value = "";
  showPictures([]);
  await answer(message);
}

/** Ask for an answer to the conversation as it stands, or to the prompt. */
async function answer(question) {
  const request = ask(conversation.messages, question.text, question.pictures);
  const { shape } = state.api[state.mode];
  const isChat = state.mode === "chat";
  const run = { id: `playground-${crypto.randomUUID?.() ?? Math.random().toString(36).slice(2)}`, controller: new AbortController() };
  const view = conversation.addAnswer({
    title: byId("adapter").value || chosenModel().name,
    showsTokens: byId("tokens").checked,
    isWritten: isChat, // a text that is continued is shown as it is
    again: () => again(question),
    results: goOn,
  });
  setRunning(run);
  let ignored = "";
  try {
    const headers = { ...request.headers, "x-request-id": run.id };
    const response = await withProgress(request, (asked) => server.call(request.path, { ...asked, headers, signal: run.controller.signal }));
    ignored = ignoredBy(response).join(", ");
    for await (const piece of piecesOf(response, shape)) {
      if (piece.error) view.fail("The answer broke off", piece.error);
      view.take(piece);
    }
  } catch (error) {
    await failed(error, run, view);
  }
  if (state.running === run) setRunning(null);
  view.end(ignored);
  if (isChat && conversation.answer === view) { // else the conversation was begun anew meanwhile
    conversation.keep(view);
    keep(conversation.messages);
  }
  changed();
}

const ignoredBy = (response) => decodeURIComponent(response.headers.get("x-dragoman-ignored") ?? "").split(",").filter((one) => one && one !== PROGRESS);

/** The response; with how far the prompt is, from APIs that tell it, as long as no engine was seen that does not. */
async function withProgress(request, send) {
  const { shape } = state.api[state.mode];
  if (state.hasNoProgress || !byId("streaming").checked || (shape !== "chat" && shape !== "completion")) return send(request);
  try {
    const response = await send({ ...request, body: { ...request.body, [PROGRESS]: true } });
    state.hasNoProgress = (response.headers.get("x-dragoman-ignored") ?? "").split(",").includes(PROGRESS);
    return response;
  } catch (error) {
    if (!(error instanceof server.Refused) || !error.message.includes(PROGRESS)) throw error;
    state.hasNoProgress = true; // and the server refuses what has no effect
    return send(request);
  }
}

async function failed(error, run, view) {
  if (run.controller.signal.aborted) {
    view.finish = "stopped";
    view.note("Stopping …");
    if (state.running === run) setRunning(null);
    const ms = await server.timeUntilEnded(run.id);
    view.note(ms === null
      ? "Stopped. The connection is closed, which ends the request on the server."
      : `Stopped. The server has ended the request, confirmed after ${Math.round(ms)} ms.`);
  } else if (error instanceof server.Refused) {
    view.fail(`Refused with ${error.status}`, error.message);
  } else {
    view.fail("No answer", error.message);
    run.controller.abort(); // what cannot be read need not be sent
  }
}

function stop() {
  state.running?.controller.abort();
}

function again(question) {
  if (state.running) return;
  conversation.dropAnswer();
  answer(question);
}

/** Go on with what tools gave. */
function goOn(results) {
  if (state.running) return;
  for (const one of results) conversation.addResult(one);
  answer({ text: "", pictures: [] });
}

function setRunning(run) {
  state.running = run;
  byId("send").hidden = Boolean(run);
  byId("stop").hidden = !run;
}

function notice(text) {
  byId("notice").textContent = text;
}

// --- choosing ------------------------------------------------------------------------------------------------------------

function options(select, pairs) {
  const before = select.value;
  select.replaceChildren(...pairs.map(([value, text]) => make("option", { value }, text)));
  if (pairs.some(([value]) => value === before)) select.value = before;
}

async function modelChosen() {
  const model = chosenModel();
  state.hasNoProgress = false;
  options(byId("adapter"), [["", "none"], ...model.adapters.map((one) => [one, one])]);
  byId("adapter-picker").hidden = !model.adapters.length;
  try {
    state.abilities = await server.readAbilities(model.name);
  } catch {
    state.abilities = { chat: true, tools: true, vision: true, thinking: true, embeds: false, usual: new Map() }; // not known: nothing is kept back
  }
  const { embeds } = state.abilities;
  for (const id of ["composer", "mode", "api-picker", "tab-parameters", "tab-code", "tab-explain"]) byId(id).hidden = embeds;
  if (embeds && state.tab !== "talk") choose("server");
  byId("tools-block").hidden = !state.abilities.tools;
  byId("attach").hidden = !state.abilities.vision;
  if (!state.abilities.vision) showPictures([]);
  apiChosen();
  welcome();
}

/** Whether the API has that mode, and the model can do it. */
function canBe(mode) {
  return Boolean(state.api[mode]) && (mode !== "chat" || state.abilities?.chat !== false || !state.api.complete);
}

function apiChosen() {
  state.api = APIS.find((one) => one.name === byId("api").value) ?? APIS[0];
  setMode(canBe(state.mode) ? state.mode : state.mode === "chat" ? "complete" : "chat");
}

function setMode(mode) {
  const isOther = mode !== state.mode;
  state.mode = mode;
  for (const radio of document.querySelectorAll("#mode input")) {
    radio.checked = radio.value === mode;
    radio.disabled = !canBe(radio.value);
  }
  const isChat = mode === "chat";
  byId("context").hidden = !isChat;
  byId("question").placeholder = isChat ? "Message" : "Text to continue";
  byId("tokens-switch").hidden = !state.api[mode].hasTokens;
  if (isOther) startAnew();
  showParameters();
  changed();
}

function showParameters() {
  if (!state.document) return;
  const { path, schemaHas } = state.api[state.mode];
  const key = `${path} ${schemaHas ?? ""}`;
  if (!state.kept.has(key)) {
    const rows = describedParameters(state.document, bodySchema(state.document, path, schemaHas));
    state.kept.set(key, new Parameters(rows, () => changed()));
  }
  state.parameters = state.kept.get(key);
  state.parameters.choose(state.abilities?.usual ?? new Map());
  byId("parameters").replaceChildren(state.parameters.node);
}

function startAnew() {
  stop();
  conversation.clear();
  keep([]);
  welcome();
  changed();
}

function welcome() {
  if (conversation.messages.length || conversation.answer) return;
  const model = chosenModel();
  if (!model.name) return void conversation.clear();
  const { abilities } = state;
  const able = ["chat", "tools", "vision", "thinking"].filter((one) => abilities?.[one]);
  const facts = [model.maxLength ? `${model.maxLength.toLocaleString("en")} tokens of context` : "", ...able].filter(Boolean);
  if (abilities?.embeds) {
    const words = "This model makes vectors or scores of texts and writes none. Programs ask it by POST /v1/embeddings or /v1/rerank; all routes: ";
    return void conversation.clear(make("div", { class: "welcome" },
      make("h2", null, model.name), make("p", { class: "note" }, words, make("a", { href: "docs", "aria-label": "All routes of this model" }, "docs"))));
  }
  const words = facts.join(" · ");
  conversation.clear(make("div", { class: "welcome" },
    make("h2", null, model.name), make("p", { class: "note" }, words),
    make("div", { class: "suggestions", role: "group", "aria-label": "Texts to begin with" }, BEGINNINGS[state.mode].map((text) => make("button", {
      type: "button", class: "plain", "aria-label": `Send: ${text}`, onclick: () => { byId("question").value = text; send(); },
    }, text)))));
}

// --- pictures ------------------------------------------------------------------------------------------------------------

function showPictures(pictures) {
  state.pictures = pictures;
  const list = byId("pictures");
  list.hidden = !pictures.length;
  list.replaceChildren(...pictures.map((url, place) => make("div", { role: "listitem" },
    make("img", { src: url, alt: `Picture ${place + 1}` }),
    make("button", {
      type: "button", class: "drop", "aria-label": `Remove picture ${place + 1}`,
      onclick: () => { showPictures(state.pictures.filter((_, other) => other !== place)); changed(); },
    }, "×"))));
}

async function addPictures(files) {
  const found = [...files].filter((one) => one.type.startsWith("image/"));
  if (!found.length) return;
  if (!state.abilities?.vision) return void notice(`${chosenModel().name} sees no pictures`);
  notice("");
  showPictures([...state.pictures, ...await Promise.all(found.map(dataUrl))]);
  changed();
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// --- the panels ----------------------------------------------------------------------------------------------------------

const changed = debounced(() => {
  if (state.tab === "code") showCode();
  if (state.tab === "explain" && state.isReady) explanation.show(nextRequest());
}, 250);

function code() {
  const language = document.querySelector("#language input:checked").value;
  const base = new URL(".", document.baseURI).href.replace(/\/$/, "");
  return LANGUAGES[language](nextRequest(), { base, shape: state.api[state.mode].shape, needsKey: state.isKeyNeeded });
}

function showCode() {
  byId("code").textContent = code().replace(new RegExp(`[A-Za-z0-9+/=]{${LONG},}`, "g"), (found) => `${found.slice(0, 24)}…`);
}

function choose(name) {
  state.tab = name === "talk" && !NARROW.matches ? "parameters" : name;
  for (const one of TABS) {
    const isChosen = one === state.tab;
    const tab = byId(`tab-${one}`);
    tab.setAttribute("aria-selected", String(isChosen));
    tab.tabIndex = isChosen ? 0 : -1;
    byId(`panel-${one}`).hidden = one === "talk" ? NARROW.matches && !isChosen : !isChosen;
  }
  byId("tab-talk").hidden = !NARROW.matches;
  if (state.tab === "server") meters.start();
  else meters.stop();
  changed.now(); // else a panel would open with the request as it was when last looked at
}

function tabKey(event) {
  const shown = TABS.filter((one) => !byId(`tab-${one}`).hidden);
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const next = shown[(shown.indexOf(state.tab) + step + shown.length) % shown.length];
  choose(next);
  byId(`tab-${next}`).focus();
}

function changeTheme() {
  const root = document.documentElement;
  const next = { light: "dark", dark: "" }[root.dataset.theme ?? ""] ?? "light";
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  try {
    localStorage.setItem("dragoman-theme", next);
  } catch {
    // storage is switched off: it holds for this page
  }
  showTheme();
}

function showTheme() {
  const { theme } = document.documentElement.dataset;
  byId("theme").textContent = { light: "Light", dark: "Dark" }[theme] ?? "Auto";
  byId("theme").setAttribute("aria-label", `Theme: ${theme ?? "as the system"}`);
}

// --- the key, and the beginning ------------------------------------------------------------------------------------------

/** Ask once for each key that turns out not to be enough: whoever closes the dialog has the button. */
function keyWanted() {
  state.isKeyNeeded = true;
  byId("key").hidden = false;
  if (state.hasAskedForKey) return;
  state.hasAskedForKey = true;
  askForKey();
}

function askForKey() {
  const dialog = byId("key-dialog");
  if (dialog.open) return;
  byId("key-field").value = server.currentKey();
  dialog.showModal();
}

function useKey(text) {
  byId("key-dialog").close();
  server.changeKey(text);
}

async function watchHealth() {
  let found;
  try {
    found = await server.readHealth();
  } catch {
    found = { isReady: false, words: "not reached" };
  }
  if (byId("health").textContent !== found.words) byId("health").textContent = found.words; // else it would be read out again
  byId("health").dataset.ready = String(found.isReady);
  if (found.isReady && !state.models.length) await readServer();
  state.isReady = found.isReady && state.models.length > 0;
  byId("send").disabled = !state.isReady;
  setTimeout(watchHealth, found.isReady ? HEALTH_MS.ready : HEALTH_MS.loading);
}

async function readServer() {
  state.document ??= await server.readJson("openapi.json");
  state.isKeyNeeded = Boolean(state.document.components.securitySchemes);
  byId("key").hidden = !state.isKeyNeeded;
  options(byId("api"), APIS.filter((one) => (one.chat ?? one.complete).path in state.document.paths).map((one) => [one.name, one.title]));
  try {
    state.models = await server.readModels();
  } catch {
    return; // a key is asked for, if that was it
  }
  state.isReady = state.models.length > 0;
  options(byId("model"), state.models.map((one) => [one.name, one.name]));
  await modelChosen();
  const before = kept();
  if (before.length && state.mode === "chat" && !state.abilities.embeds && !conversation.messages.length) {
    conversation.restore(before, chosenModel().name);
    changed();
  }
}

async function keyChanged() {
  state.models = [];
  state.hasAskedForKey = false;
  await readServer();
  byId("send").disabled = !state.isReady;
  choose(state.tab);
}

function listen() {
  const on = (id, kind, act) => byId(id).addEventListener(kind, act);
  on("composer", "submit", (event) => { event.preventDefault(); send(); });
  on("stop", "click", () => { stop(); byId("question").focus(); });
  on("clear", "click", () => { startAnew(); byId("question").focus(); });
  on("model", "change", modelChosen);
  on("api", "change", apiChosen);
  on("mode", "change", (event) => setMode(event.target.value));
  on("attach", "click", () => byId("picture-file").click());
  on("picture-file", "change", (event) => { addPictures(event.target.files); event.target.value = ""; });
  on("tools-example", "click", () => { byId("tools").value = JSON.stringify(EXAMPLE_TOOL, null, 2); changed(); });
  on("language", "change", showCode);
  on("copy-code", "click", () => copy(code(), byId("copy-code")));
  on("theme", "click", changeTheme);
  on("key", "click", askForKey);
  on("key-form", "submit", (event) => { event.preventDefault(); useKey(byId("key-field").value); });
  on("key-cancel", "click", () => byId("key-dialog").close());
  on("key-forget", "click", () => { startAnew(); useKey(""); });
  for (const id of ["question", "system", "tools"]) on(id, "input", changed);
  for (const id of ["adapter", "tokens", "streaming"]) on(id, "change", changed);
  for (const one of TABS) on(`tab-${one}`, "click", () => choose(one));
  document.querySelector("[role=tablist]").addEventListener("keydown", tabKey);
  document.addEventListener("keydown", (event) => {
    const isQuestion = event.target === byId("question") && !event.shiftKey && !event.altKey && !event.isComposing;
    if (event.key === "Enter" && (isQuestion || event.ctrlKey || event.metaKey)) { event.preventDefault(); send(); }
    if (event.key === "Escape") { hide(); if (!byId("key-dialog").open) stop(); }
  });
  document.addEventListener("paste", (event) => addPictures(event.clipboardData.files));
  const talk = byId("panel-talk");
  talk.addEventListener("dragover", (event) => { event.preventDefault(); talk.classList.add("over"); });
  talk.addEventListener("dragleave", () => talk.classList.remove("over"));
  talk.addEventListener("drop", (event) => { event.preventDefault(); talk.classList.remove("over"); addPictures(event.dataTransfer.files); });
  byId("answers").addEventListener("scroll", hide);
  NARROW.addEventListener("change", () => choose(NARROW.matches ? "talk" : "parameters"));
  server.keyring.addEventListener("keywanted", keyWanted);
  server.keyring.addEventListener("keychanged", keyChanged);
}

showTheme();
listen();
choose("talk");
watchHealth();
if (!NARROW.matches) byId("question").focus();
