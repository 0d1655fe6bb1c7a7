// What the server does at this moment, read from /metrics: once a second while anybody looks, otherwise not at all.

import { draw, make } from "./elements.js";
import { call, Refused } from "./server.js";

const PERIOD_MS = 1000;
const NUM_SAMPLES = 60; // a minute
const WIDTH = 320;
const HEIGHT = 56;
const BAR_HEIGHT = 72;

const LINES = [
  { name: "rate", title: "Tokens per second", show: (value) => (value < 10 ? value.toFixed(1) : String(Math.round(value))) },
  { name: "running", title: "Running", show: String },
  { name: "waiting", title: "Waiting", show: String },
  { name: "cache", title: "Cache in use", show: (value) => `${value.toFixed(value < 9.95 ? 1 : 0)} %`, top: 100 },
];
const BARS = [
  { name: "dragoman_time_to_first_token_seconds", title: "First token" },
  { name: "dragoman_inter_token_seconds", title: "Between tokens" },
];

/** Numbers by name, summed over models, APIs and outcomes; histograms as [[upper bound, count up to it], …]. */
export function readMetrics(text) {
  const sums = new Map();
  const histograms = new Map();
  for (const line of text.split("\n")) {
    const found = /^([a-z_:]+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const [, name, labels = "", value] = found;
    const bound = name.endsWith("_bucket") ? /le="([^"]+)"/.exec(labels)?.[1] : undefined;
    if (bound === undefined) {
      sums.set(name, (sums.get(name) ?? 0) + Number(value));
    } else {
      const key = name.slice(0, -"_bucket".length);
      const buckets = histograms.get(key) ?? histograms.set(key, new Map()).get(key);
      const upper = bound === "+Inf" ? Infinity : Number(bound);
      buckets.set(upper, (buckets.get(upper) ?? 0) + Number(value));
    }
  }
  const sorted = new Map([...histograms].map(([name, buckets]) => [name, [...buckets].sort((a, b) => a[0] - b[0])]));
  return { sums, histograms: sorted };
}

/** Counts per bucket of what came after `before`: [{low, high, count}]. */
export function between(before, after) {
  const known = new Map(before ?? []);
  let low = 0;
  let below = 0;
  return (after ?? []).map(([high, upTo]) => {
    const total = upTo - (known.get(high) ?? 0);
    const bucket = { low, high, count: total - below };
    low = high;
    below = total;
    return bucket;
  });
}

/** The value below which that share of a histogram lies, by linear interpolation within its bucket; null if it is empty. */
export function quantile(buckets, share) {
  const total = buckets.reduce((sum, one) => sum + one.count, 0);
  let wanted = total * share;
  for (const { low, high, count } of buckets) {
    if (count && wanted <= count) return high === Infinity ? low : low + (high - low) * (wanted / count);
    wanted -= count;
  }
  return null;
}

/** All plots. `start` and `stop` when they are shown and hidden. */
export class Meters {
  constructor(node) {
    this.samples = [];
    this.first = null; // histograms as they were when the page first looked
    this.last = null;
    this.timer = 0;
    this.words = make("p", { class: "note" }, "Reading …");
    this.lines = LINES.map((line) => new LinePlot(line));
    this.bars = BARS.map((bar) => new BarPlot(bar));
    node.append(
      make("div", { class: "grid" }, this.lines.map((one) => one.node)),
      make("div", { class: "stack" }, this.bars.map((one) => one.node)), this.words);
  }

  start() {
    if (!this.timer) {
      this.timer = setInterval(() => this.sample(), PERIOD_MS);
      this.sample();
    }
  }

  stop() {
    clearInterval(this.timer);
    this.timer = 0;
  }

  async sample() {
    if (document.hidden || this.isAsking) return;
    this.isAsking = true;
    try {
      this.take(readMetrics(await (await call("metrics")).text()), performance.now());
      this.words.textContent = "Above: the last minute. Below: calls since this was opened, or all calls as long as there are none.";
    } catch (error) {
      const needsScope = error instanceof Refused && (error.status === 401 || error.status === 403);
      this.words.textContent = needsScope ? "These numbers need a key that opens the scope metrics." : `Not read: ${error.message}`;
      if (needsScope) this.stop();
    } finally {
      this.isAsking = false;
    }
  }

  take({ sums, histograms }, nowMs) {
    const generated = sums.get("dragoman_generation_tokens_total") ?? 0;
    const { last } = this;
    const seconds = last ? (nowMs - last.nowMs) / 1000 : 0;
    const isGap = seconds > 5; // the page was hidden: a rate over that time would say nothing
    const blocks = sums.get("dragoman_kv_blocks") ?? 0;
    this.samples.push({
      rate: last && !isGap && generated >= last.generated ? (generated - last.generated) / seconds : 0,
      running: sums.get("dragoman_requests_running") ?? 0,
      waiting: sums.get("dragoman_requests_waiting") ?? 0,
      cache: blocks ? ((sums.get("dragoman_kv_blocks_used") ?? 0) / blocks) * 100 : 0,
    });
    if (this.samples.length > NUM_SAMPLES) this.samples.shift();
    this.last = { generated, nowMs };
    this.first ??= histograms;
    for (const plot of this.lines) plot.show(this.samples);
    for (const plot of this.bars) plot.show(this.first.get(plot.name), histograms.get(plot.name));
  }
}

class LinePlot {
  constructor({ name, title, show, top }) {
    Object.assign(this, { name, title, words: show, top });
    this.number = make("span", { class: "figure" }, "–");
    this.line = draw("polyline", { class: "line", fill: "none" });
    this.area = draw("polygon", { class: "area" });
    this.drawing = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title }, this.area, this.line);
    this.node = make("figure", { class: "meter", "data-meter": name }, make("figcaption", null, title), this.number, this.drawing);
  }

  show(samples) {
    const values = samples.map((one) => one[this.name]);
    const now = values.at(-1);
    const top = Math.max(this.top ?? 0, ...values, 1);
    const x = (place) => WIDTH - (values.length - 1 - place) * (WIDTH / (NUM_SAMPLES - 1));
    const points = values.map((value, place) => `${x(place).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 6)).toFixed(1)}`);
    this.line.setAttribute("points", points.join(" "));
    this.area.setAttribute("points", [`${x(0).toFixed(1)},${HEIGHT}`, ...points, `${WIDTH},${HEIGHT}`].join(" "));
    this.number.textContent = this.words(now);
    this.drawing.setAttribute("aria-label", `${this.title}: ${this.words(now)} now, at most ${this.words(Math.max(...values))} in a minute`);
  }
}

class BarPlot {
  constructor({ name, title }) {
    Object.assign(this, { name, title });
    this.number = make("span", { class: "figure" }, "–");
    this.drawing = draw("svg", { viewBox: `0 0 ${WIDTH} ${BAR_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": title });
    this.low = make("span", null);
    this.high = make("span", null);
    this.about = make("span", { class: "about" });
    this.node = make("figure", { class: "meter wide", "data-meter": name },
      make("figcaption", null, title, this.about), this.number, this.drawing,
      make("div", { class: "scale", "aria-hidden": "true" }, this.low, this.high));
  }

  show(before, after) {
    let buckets = between(before, after);
    if (!buckets.some((one) => one.count)) buckets = between(null, after);
    const used = trimmed(buckets);
    this.drawing.replaceChildren();
    if (!used.length) {
      this.number.textContent = "–";
      this.about.textContent = "no calls yet";
      return;
    }
    const most = Math.max(...used.map((one) => one.count));
    const width = WIDTH / used.length;
    this.drawing.append(...used.map(({ count }, place) => {
      const height = count ? Math.max(2, (count / most) * (BAR_HEIGHT - 2)) : 0;
      return draw("rect", { class: "column", x: place * width + 1, y: BAR_HEIGHT - height, width: Math.max(1, width - 2), height, rx: 1.5 });
    }));
    const [half, most95] = [quantile(used, 0.5), quantile(used, 0.95)].map(duration);
    this.number.textContent = half;
    this.about.textContent = `median, 95 % within ${most95}`;
    this.low.textContent = duration(used[0].low);
    this.high.textContent = used.at(-1).high === Infinity ? "more" : duration(used.at(-1).high);
    this.drawing.setAttribute("aria-label", `${this.title}: median ${half}, 95 % within ${most95}`);
  }
}

/** Without what is empty at both ends, but never fewer than eight buckets. */
function trimmed(buckets) {
  const used = buckets.map((one, place) => (one.count ? place : -1)).filter((place) => place >= 0);
  if (!used.length) return [];
  let [first, last] = [used[0], used.at(-1)];
  while (last - first < 9 && (first > 0 || last < buckets.length - 1)) {
    if (first > 0) first -= 1;
    if (last < buckets.length - 2) last += 1;
    else if (first === 0) break;
  }
  return buckets.slice(first, last + 1);
}

export function duration(seconds) {
  if (seconds === null) return "–";
  if (seconds >= 9.95) return `${Math.round(seconds)} s`;
  if (seconds >= 0.9995) return `${seconds.toFixed(1)} s`;
  const ms = seconds * 1000;
  return `${ms < 9.95 ? ms.toFixed(1) : Math.round(ms)} ms`;
}
