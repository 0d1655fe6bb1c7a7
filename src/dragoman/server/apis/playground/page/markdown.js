// Markdown as models write it, as elements: headings, paragraphs, lists, quotes, tables, code, emphasis, links.
//
// Everything is made with text nodes, so nothing in a text is ever read as HTML. Links lead to http and https only; pictures are
// shown as links, since nothing is fetched that nobody asked for.

import { make } from "./elements.js";

const FENCE = /^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^\s{0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const RULE = /^\s{0,3}(?:(?:\*\s*){3,}|(?:-\s*){3,}|(?:_\s*){3,})$/;
const QUOTE = /^\s{0,3}>\s?/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const TABLE_RULE = /^\s*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 20; // lists in lists, quotes in quotes: further ones are text

const INLINE = new RegExp([
  /(?<ticks>`+)(?<code>[^`]|[^`][^]*?[^`])\k<ticks>(?!`)/,
  /!?\[(?<label>[^\][]{0,500})\]\((?<address>[^\s()]{1,2000}(?:\([^\s()]{0,500}\)[^\s()]{0,500})?)(?:\s+"[^"]{0,500}")?\)/,
  /(?<bare>https?:\/\/[^\s<>()[\]"'`]{1,2000}[^\s<>()[\]"'`.,;:!?*_])/,
  /\*\*(?<strong>[^\s*](?:[^*]{0,2000}?[^\s*])?)\*\*/,
  /(?<![\w_])__(?<strong2>[^\s_](?:[^_]{0,2000}?[^\s_])?)__(?![\w_])/,
  /\*(?<emphasis>[^\s*](?:[^*]{0,2000}?[^\s*])?)\*/,
  /(?<![\w_])_(?<emphasis2>[^\s_](?:[^_]{0,2000}?[^\s_])?)_(?![\w_])/,
  /~~(?<gone>[^\s~](?:[^~]{0,2000}?[^\s~])?)~~/,
  /\\(?<escaped>[\\`*_{}[\]()#+.!|~>-])/,
].map((one) => one.source).join("|"), "g");

/** The elements of a text. */
export function markdown(text) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), 0);
}

function blocks(lines, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    const heading = HEADING.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) at = fenced(lines, at, fence, found);
    else if (heading) {
      found.push(make(`h${Math.min(heading[1].length + 2, 6)}`, null, inline(heading[2])));
      at += 1;
    } else if (RULE.test(line)) {
      found.push(make("hr"));
      at += 1;
    } else if (QUOTE.test(line) && depth < DEEPEST) at = quoted(lines, at, found, depth);
    else if (ITEM.test(line) && depth < DEEPEST) at = listed(lines, at, found, depth);
    else if (line.includes("|") && TABLE_RULE.test(lines[at + 1] ?? "") && lines[at + 1].includes("-")) at = tabled(lines, at, found);
    else at = paragraph(lines, at, found);
  }
  return found;
}

function fenced(lines, begin, [, mark, language], found) {
  let end = begin + 1;
  while (end < lines.length && !(lines[end].trim().startsWith(mark) && !lines[end].trim().replaceAll(mark[0], ""))) end += 1;
  found.push(make("pre", { class: "listing", tabindex: "0", "aria-label": language ? `Code, ${language}` : "Code" },
    make("code", null, lines.slice(begin + 1, end).join("\n"))));
  return end + 1;
}

function quoted(lines, begin, found, depth) {
  let end = begin;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  found.push(make("blockquote", null, blocks(lines.slice(begin, end).map((line) => line.replace(QUOTE, "")), depth + 1)));
  return end;
}

/** A list with what stands below its items: lines that are indented further than the marks. */
function listed(lines, begin, found, depth) {
  const [, indent, mark] = ITEM.exec(lines[begin]);
  const isOrdered = /\d/.test(mark);
  const items = [];
  let at = begin;
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length || /\d/.test(item[2]) !== isOrdered) break;
    const inner = [item[3]];
    at += 1;
    while (at < lines.length && (isBelow(lines[at], indent) || (!lines[at].trim() && isBelow(lines[at + 1] ?? "", indent)))) {
      inner.push(lines[at].slice(Math.min(indent.length + item[2].length + 1, lines[at].search(/\S|$/))));
      at += 1;
    }
    items.push(inner);
    if (!(lines[at] ?? "x").trim() && ITEM.test(lines[at + 1] ?? "")) at += 1; // blanks between items
  }
  const start = isOrdered && Number.parseInt(mark, 10) !== 1 ? Number.parseInt(mark, 10) : null;
  found.push(make(isOrdered ? "ol" : "ul", { start }, items.map((inner) => make("li", null, tight(blocks(inner, depth + 1))))));
  return at;
}

const isBelow = (line, indent) => line.trim() !== "" && line.search(/\S/) >= indent.length + 2;

/** An item of one paragraph is that paragraph's text. */
const tight = (parts) => (parts[0]?.tagName === "P" ? [...parts[0].childNodes, ...parts.slice(1)] : parts);

function tabled(lines, begin, found) {
  const head = cells(lines[begin]);
  const sides = cells(lines[begin + 1]).map((one) => (one.endsWith(":") ? (one.startsWith(":") ? "center" : "end") : "start"));
  let end = begin + 2;
  while (end < lines.length && lines[end].includes("|") && lines[end].trim()) end += 1;
  const row = (tag, line) => make("tr", null, head.map((_, place) => make(tag, { class: `to-${sides[place] ?? "start"}` }, inline(line[place] ?? ""))));
  found.push(make("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" }, make("table", null,
    make("thead", null, row("th", head)), make("tbody", null, lines.slice(begin + 2, end).map((line) => row("td", cells(line)))))));
  return end;
}

const cells = (line) => line.trim().replace(/^\|/, "").replace(/(?<!\\)\|$/, "").split(/(?<!\\)\|/).map((one) => one.trim().replaceAll("\\|", "|"));

function paragraph(lines, begin, found) {
  let end = begin + 1;
  while (end < lines.length && lines[end].trim() && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((one) => one.test(lines[end]))) end += 1;
  found.push(make("p", null, inline(lines.slice(begin, end).join("\n"))));
  return end;
}

/** A text's nodes. What is marked in what is marked is found within it, which is always shorter. */
function inline(text) {
  const found = [];
  let last = 0;
  for (const match of text.matchAll(INLINE)) {
    found.push(text.slice(last, match.index), marked(match));
    last = match.index + match[0].length;
  }
  return [...found, text.slice(last)].filter((one) => one !== "");
}

function marked({ 0: whole, groups }) {
  if (groups.code !== undefined) return make("code", null, groups.code);
  if (groups.escaped !== undefined) return groups.escaped;
  if (groups.bare) return link(groups.bare, [groups.bare]);
  if (groups.address) return link(groups.address, inline(groups.label)) ?? whole;
  if (groups.gone !== undefined) return make("s", null, inline(groups.gone));
  const strong = groups.strong ?? groups.strong2;
  if (strong !== undefined) return make("strong", null, inline(strong));
  return make("em", null, inline(groups.emphasis ?? groups.emphasis2));
}

/** A link, null for an address that is not of the web. */
function link(address, label) {
  if (!/^https?:\/\//i.test(address)) return null;
  return make("a", { href: address, target: "_blank", rel: "noopener noreferrer nofollow" }, label.length ? label : address);
}
