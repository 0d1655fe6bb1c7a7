// What was said, and the answer that is arriving: text or tokens, reasoning and tool calls folded, numbers below.

import { copyButton, make } from "./elements.js";
import { markdown } from "./markdown.js";
import { TokenView, hide, legend } from "./tokens.js";

/** The messages on the page. `messages` is what a next request has to repeat. */
export class Conversation {
  constructor(node, announcer) {
    this.node = node;
    this.reader = new Announcer(announcer);
    this.messages = [];
    this.answer = null; // the newest
  }

  clear(...welcome) {
    hide();
    this.messages = [];
    this.answer = null;
    this.node.replaceChildren(...welcome);
  }

  /** Show what the user says. `isPrompt`: a text to be continued, which is no part of a conversation. */
  addQuestion(message, isPrompt) {
    if (!this.answer && !this.messages.length) this.node.replaceChildren();
    const pictures = message.pictures.map((url, place) => make("img", { src: url, alt: `Picture ${place + 1} of the message` }));
    this.node.append(make("article", { class: "message asked", "aria-label": isPrompt ? "Prompt" : "You" },
      make("h2", null, isPrompt ? "Prompt" : "You"),
      pictures.length ? make("div", { class: "pictures" }, pictures) : null,
      make("div", { class: "text" }, message.text)));
    if (!isPrompt) this.messages.push(message);
    this.toEnd(true);
  }

  /** Leave out a question that got no answer: what was wrong with it would be wrong with every later request. */
  forgetUnanswered() {
    if (this.messages.at(-1)?.role === "user") this.messages.pop();
  }

  /** Show what a tool gave. */
  addResult(message) {
    this.messages.push(message);
    this.node.append(make("article", { class: "message asked", "aria-label": `Result of ${message.name}` },
      make("h2", null, `Result of ${message.name}`), make("div", { class: "text code" }, message.text)));
    this.toEnd(true);
  }

  /** The place of a new answer. */
  addAnswer(options) {
    this.answer?.settle();
    this.answer = new Answer({ ...options, grown: () => this.toEnd(), reader: this.reader });
    this.node.append(this.answer.node);
    this.toEnd(true);
    return this.answer;
  }

  /** Show again what was said before the page was loaded anew. `title`: who answered. */
  restore(messages, title) {
    this.node.replaceChildren();
    for (const message of messages) {
      if (message.role === "user") this.addQuestion(message, false);
      else if (message.role === "tool") this.addResult(message);
      else this.addOldAnswer(message, title);
    }
    this.toEnd(true);
  }

  addOldAnswer(message, title) {
    this.messages.push(message);
    const { text, reasoning, calls } = message;
    this.node.append(make("article", { class: "message answered", "aria-label": `Answer of ${title}`, "aria-busy": "false" },
      make("h2", null, title),
      reasoning ? make("details", { class: "fold reasoning" }, make("summary", null, "Reasoning"), make("div", { class: "text" }, reasoning)) : null,
      make("div", { class: "choice" }, make("div", { class: "text written" }, markdown(text))),
      calls.map((one) => make("details", { class: "fold call" }, make("summary", null, "Tool call ", make("code", null, one.name)),
        make("pre", { "aria-label": "Arguments" }, indented(one.arguments)))),
      make("div", { class: "foot" }, make("span", { class: "numbers" }), make("span", { class: "tools" }, text ? copyButton(() => text, "Copy the answer") : null))));
  }

  /** Keep a finished answer for the next request. */
  keep(answer) {
    const message = answer.message();
    if (message.text || message.calls.length) this.messages.push(message);
    return message;
  }

  /** Forget the newest answer, so that it can be asked for again. */
  dropAnswer() {
    this.answer.node.remove();
    if (this.messages.at(-1)?.role === "assistant") this.messages.pop();
    this.answer = null;
  }

  toEnd(always) {
    const { scrollHeight, scrollTop, clientHeight } = this.node;
    if (always || scrollHeight - scrollTop - clientHeight < 160) this.node.scrollTop = scrollHeight;
  }
}

/** How far a prompt is, in words. */
export function progressWords({ total, processed, time_ms: timeMs, ahead, expected_ms: expectedMs }) {
  const words = ahead ? `${ahead} before you` : timeMs ? `reading the prompt: ${Math.floor((100 * processed) / total)} %` : "you are next";
  return expectedMs ? `${words}, about ${Math.max(1, Math.round(expectedMs / 1000))} s` : words;
}

/** One answer: several choices, if several were asked for. */
class Answer {
  constructor({ title, showsTokens, isWritten, grown, reader, again, results }) {
    Object.assign(this, { showsTokens, isWritten, grown, reader, again, results });
    this.choices = new Map();
    this.usage = {};
    this.finish = "";
    this.began = performance.now();
    this.first = null;
    this.last = this.began;
    this.pieces = 0;
    this.body = make("div", { class: "choices" });
    this.foot = make("div", { class: "foot" });
    this.node = make("article", { class: "message answered", "aria-label": `Answer of ${title}`, "aria-busy": "true" },
      make("h2", null, title), this.body, this.foot);
    this.choice(0);
  }

  choice(index) {
    let found = this.choices.get(index);
    if (!found) {
      found = new Choice(index, this.showsTokens, this.isWritten);
      found.grown = this.grown;
      this.choices.set(index, found);
      this.body.append(found.node);
      if (this.choices.size > 1) for (const one of this.choices.values()) one.number();
    }
    return found;
  }

  /** Add a piece of `stream.js`. */
  take(piece) {
    const { progress, text, reasoning, call, tokens, alternatives } = piece;
    if (progress) this.wait(progress);
    if (piece.usage) for (const [name, count] of Object.entries(piece.usage)) if (count !== undefined) this.usage[name] = count;
    if (piece.finish) this.finish = piece.finish;
    if (!text && !reasoning && !call && !tokens?.length && !alternatives) return;
    this.endWait();
    this.last = performance.now();
    this.first ??= this.last;
    this.pieces += 1;
    this.choice(piece.choice ?? 0).add(piece);
    if (text && !piece.choice) this.reader.add(text);
    this.grown();
  }

  /** Tell how far the call is that has no token yet. */
  wait(progress) {
    this.bar ??= make("progress", { max: 1, "aria-label": "How far the prompt is" });
    this.words ??= make("span", null);
    this.waiting ??= this.node.insertBefore(make("div", { class: "waiting", role: "status" }, this.bar, this.words), this.body);
    if (progress.time_ms) this.bar.value = progress.processed / progress.total;
    this.words.textContent = progressWords(progress);
    this.grown();
  }

  endWait() {
    this.waiting?.remove();
    this.waiting = null;
  }

  /** The answer as a message of the conversation: the first choice. */
  message() {
    const { text, reasoning, calls } = this.choice(0);
    return { role: "assistant", text, reasoning, calls: [...calls.values()].map(({ id, name, json }) => ({ id, name, arguments: json })) };
  }

  /** Nothing more comes. `ignored`: parameters without effect. */
  end(ignored) {
    this.endWait();
    this.node.setAttribute("aria-busy", "false");
    this.reader.end();
    for (const one of this.choices.values()) one.end();
    const { text, calls, tokens } = this.choice(0);
    this.foot.append(make("span", { class: "numbers" }, this.numbers(tokens.tokens.length)),
      make("span", { class: "tools" }, tokens.tokens.length ? this.toggle() : null,
        text ? copyButton(() => text, "Copy the answer") : null,
        make("button", { type: "button", class: "plain", "aria-label": "Ask again", onclick: this.again }, "Again")));
    if (ignored) this.node.append(make("p", { class: "note" }, `Without effect: ${ignored}`));
    if (calls.size) this.askForResults([...calls.values()]);
    this.grown();
  }

  toggle() {
    const names = () => (this.showsTokens ? "Text" : "Tokens");
    const button = make("button", { type: "button", class: "plain", "aria-label": "Show text or tokens", "aria-pressed": String(this.showsTokens) }, names());
    button.addEventListener("click", () => {
      this.showsTokens = !this.showsTokens;
      for (const one of this.choices.values()) one.showTokens(this.showsTokens);
      button.textContent = names();
      button.setAttribute("aria-pressed", String(this.showsTokens));
    });
    return button;
  }

  numbers(numTokens) {
    const count = this.usage.completion ?? (numTokens || null);
    const seconds = (this.last - (this.first ?? this.began)) / 1000;
    // What came in few pieces, as calls of tools do, says nothing of how fast its tokens were made.
    const rate = count > 1 && seconds > 0.001 && this.pieces * 2 >= count ? Math.round((count - 1) / seconds) : null;
    return [
      count === null ? null : `${count} token${count === 1 ? "" : "s"}`,
      this.first === null ? null : `first after ${Math.round(this.first - this.began)} ms`,
      rate === null ? null : `${rate} tokens/s`,
      this.finish || null,
    ].filter(Boolean).join(" · ");
  }

  fail(title, text) {
    this.node.append(make("div", { class: "failure", role: "alert" }, make("strong", null, title), make("p", null, text)));
    this.grown();
  }

  note(text) {
    this.said ??= this.node.appendChild(make("p", { class: "note", role: "status", "aria-label": "What became of the request" }));
    this.said.textContent = text;
    this.grown();
  }

  /** Fields for what the tools gave; sent together, as the model asked for them together. */
  askForResults(calls) {
    const fields = calls.map((one) => make("textarea", { rows: 1, class: "code", "aria-label": `Result of ${one.name}`, placeholder: `What ${one.name} gave` }));
    this.form = make("form", { class: "results", "aria-label": "Results of the tools" }, fields,
      make("button", { type: "submit", class: "plain", "aria-label": "Send the results" }, fields.length > 1 ? "Send results" : "Send result"));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      const found = calls.map(({ id, name }, place) => ({ role: "tool", id, name, text: fields[place].value }));
      this.results(found);
    });
    this.node.append(this.form);
  }

  /** The conversation goes on: nothing here can be done again. */
  settle() {
    this.form?.remove();
    this.node.querySelector("[aria-label='Ask again']")?.remove();
  }
}

/** One choice of an answer. */
class Choice {
  constructor(index, showsTokens, isWritten) {
    this.isWritten = isWritten;
    this.index = index;
    this.text = "";
    this.reasoning = "";
    this.calls = new Map();
    this.tokens = new TokenView();
    this.plain = make("div", { class: isWritten ? "text written" : "text" });
    this.coloured = make("div", { class: "coloured" }, this.tokens.node, legend());
    this.folded = make("div", { class: "folded" });
    this.node = make("div", { class: "choice" }, this.plain, this.coloured, this.folded);
    this.showTokens(showsTokens);
  }

  number() {
    this.title ??= this.node.insertBefore(make("h3", null, `Choice ${this.index + 1}`), this.node.firstChild);
  }

  add({ text, reasoning, call, tokens, alternatives }) {
    if (reasoning) this.think(reasoning);
    if (text) {
      this.text += text;
      if (this.isWritten) this.writeSoon();
      else this.plain.append(text);
    }
    if (tokens?.length) this.tokens.add(tokens);
    if (alternatives) this.tokens.addAlternatives(alternatives);
    if (call) this.call(call);
    this.show();
  }

  showTokens(shows) {
    this.showsTokens = shows;
    this.show();
  }

  /** Tokens are shown if there are any: an API that does not tell them shows its text all the same. */
  show() {
    const shows = this.showsTokens && this.tokens.tokens.length > 0;
    this.plain.hidden = shows || !this.text;
    this.coloured.hidden = !shows;
  }

  think(text) {
    this.reasoning += text;
    if (!this.thought) {
      this.thought = make("div", { class: "text" });
      this.node.insertBefore(make("details", { class: "fold reasoning" }, make("summary", null, "Reasoning"), this.thought), this.plain);
    }
    this.thought.append(text);
  }

  call({ index, id, name, arguments: more }) {
    let known = this.calls.get(index);
    if (!known) {
      known = { id: id ?? `call_${index}`, name: name ?? "", json: "", code: make("pre", { "aria-label": "Arguments" }), title: make("code", null, name ?? "") };
      this.calls.set(index, known);
      this.folded.append(make("details", { class: "fold call" }, make("summary", null, "Tool call ", known.title), known.code));
    }
    if (name) known.title.textContent = known.name = name;
    known.json += more ?? "";
    known.code.textContent = known.json;
  }

  /** Markdown is read anew when more has come, not with every token: the longer the text, the more seldom. */
  writeSoon() {
    this.timer ??= setTimeout(() => this.write(), Math.min(15 + this.text.length / 200, 500));
  }

  write() {
    clearTimeout(this.timer);
    this.timer = undefined;
    this.plain.replaceChildren(...markdown(this.text));
    this.grown?.();
  }

  end() {
    if (this.isWritten) this.write();
    for (const one of this.calls.values()) one.code.textContent = indented(one.json);
  }
}

function indented(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}

/** Reads an answer out in sentences: word by word, a screen reader would never finish one. */
class Announcer {
  constructor(node) {
    this.node = node;
    this.waiting = "";
  }

  add(text) {
    this.waiting += text;
    const end = Math.max(...[". ", "! ", "? ", "\n"].map((mark) => this.waiting.lastIndexOf(mark)));
    if (end >= 0) this.say(end + 1);
  }

  end() {
    if (this.waiting.trim()) this.say(this.waiting.length);
    this.waiting = "";
  }

  say(length) {
    this.node.textContent = this.waiting.slice(0, length).trim();
    this.waiting = this.waiting.slice(length);
  }
}
