// An answer token by token: how likely each was, and what else could have stood there.

import { byId, make } from "./elements.js";

/** Probabilities at which the shades change, the likeliest first; a token below all of them has the last shade. */
const SHADES = [0.9, 0.5, 0.2, 0.05];

export function legend() {
  const words = ["≥ 90 %", "≥ 50 %", "≥ 20 %", "≥ 5 %", "less"];
  return make("p", { class: "legend" }, "Probability", words.map((text, shade) => make("span", { class: `shade-${shade}` }, text)));
}

export const shadeOf = (probability) => {
  const found = SHADES.findIndex((bound) => probability >= bound);
  return found < 0 ? SHADES.length : found;
};

/** Tokens side by side. One of them is in the order of focus; arrow keys move among them. */
export class TokenView {
  constructor() {
    this.tokens = [];
    this.node = make("div", { class: "tokens", role: "group", "aria-label": "Tokens of the answer; arrow keys move among them" });
    this.node.addEventListener("keydown", (event) => this.move(event));
    for (const kind of ["pointerover", "focusin"]) this.node.addEventListener(kind, (event) => this.show(event.target));
    for (const kind of ["pointerleave", "focusout"]) this.node.addEventListener(kind, hide);
  }

  add(tokens) {
    for (const token of tokens) {
      const place = this.tokens.push(token) - 1;
      const probability = probabilityOf(token.logprob);
      const shade = probability === null ? "" : `shade-${shadeOf(probability)}`;
      const node = make("span", { class: `token ${shade}`, tabindex: place ? "-1" : "0", role: "note", "data-place": String(place), "aria-label": spoken(token) });
      for (const [index, line] of token.text.split("\n").entries()) {
        if (index) node.append(make("span", { class: "newline", "aria-hidden": "true" }, "⏎"), "\n");
        node.append(line);
      }
      if (token.text === "") node.append(make("span", { class: "newline", "aria-hidden": "true" }, "∅"));
      this.node.append(node);
    }
  }

  /** What else could have stood at each place, where that comes at the end. */
  addAlternatives(lists) {
    for (const [place, top] of lists.entries()) {
      if (this.tokens[place]) this.tokens[place].top = top;
    }
  }

  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[event.key];
    const focused = event.target.closest(".token");
    if (!focused || (!step && event.key !== "Home" && event.key !== "End")) return;
    event.preventDefault();
    const last = this.tokens.length - 1;
    const wanted = step ? Number(focused.dataset.place) + step : event.key === "Home" ? 0 : last;
    const target = this.node.children[Math.max(0, Math.min(last, wanted))];
    focused.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }

  show(target) {
    const node = target.closest?.(".token");
    if (!node) return;
    const popover = byId("popover");
    popover.replaceChildren(card(this.tokens[Number(node.dataset.place)]));
    popover.hidden = false;
    const { left, bottom, top } = node.getClientRects()[0] ?? node.getBoundingClientRect();
    const { offsetWidth: width, offsetHeight: height } = popover;
    const isBelow = bottom + 8 + height < innerHeight;
    const edge = Math.min(this.node.getBoundingClientRect().right, innerWidth - 8); // the panel beside it stays readable
    popover.style.left = `${Math.max(8, Math.min(left, edge - width))}px`;
    popover.style.top = `${isBelow ? bottom + 8 : Math.max(8, top - height - 8)}px`;
    if (document.activeElement === node) node.setAttribute("aria-describedby", "popover");
  }
}

export function hide() {
  byId("popover").hidden = true;
}

function card(token) {
  const own = { text: token.text, logprob: token.logprob };
  const others = token.top.filter((one) => one.text !== token.text);
  const all = [own, ...others].filter((one) => probabilityOf(one.logprob) !== null).sort((a, b) => b.logprob - a.logprob);
  if (!all.length) return make("p", { class: "note" }, "No log-probability");
  return make("table", { "aria-label": "Candidates" }, all.map((one) => {
    const probability = probabilityOf(one.logprob);
    const bar = make("span", { class: "bar-fill" });
    bar.style.inlineSize = `${Math.max(1, probability * 100)}%`;
    return make("tr", { class: one === own ? "chosen" : null },
      make("th", { scope: "row" }, visible(one.text)),
      make("td", { class: "bar-cell" }, bar),
      make("td", null, percent(probability)),
      make("td", { class: "logprob" }, (one.logprob || 0).toFixed(2).replace(/^-0\.00$/, "0.00")));
  }));
}

const probabilityOf = (logprob) => (logprob === null || logprob === undefined ? null : Math.exp(logprob));

const percent = (probability) => `${(probability * 100).toFixed(probability < 0.0995 ? 2 : 1)} %`;

function visible(text) {
  return text === "" ? "∅" : text.replaceAll("\n", "⏎").replaceAll(" ", "·");
}

function spoken(token) {
  const probability = probabilityOf(token.logprob);
  const name = token.text.trim() || (token.text ? "blank" : "nothing");
  return probability === null ? name : `${name}, ${percent(probability)}`;
}
