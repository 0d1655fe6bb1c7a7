// Elements, made with text nodes only: nothing that a server or a model answers is ever read as HTML.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

/** An element. Attributes that begin with `on` are listeners; null, undefined and false leave an attribute out. */
export function make(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An element of a drawing. */
export function draw(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

/** A button that copies what `text()` gives, and says so for a moment. */
export function copyButton(text, label) {
  const button = make("button", { type: "button", class: "plain", "aria-label": label }, "Copy");
  button.addEventListener("click", () => copy(text(), button));
  return button;
}

/** Put a text on the clipboard and say on the button whether that went well. */
export async function copy(text, button) {
  const before = button.dataset.words ?? button.textContent;
  button.dataset.words = before;
  try {
    await clip(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => { button.textContent = before; }, 1500);
}

async function clip(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // Pages that came over plain HTTP from another machine have no clipboard; a selection can still be copied.
  const field = make("textarea", { class: "unseen", "aria-hidden": "true" });
  field.value = text;
  document.body.append(field);
  field.select();
  const done = document.execCommand("copy");
  field.remove();
  if (!done) throw new Error("the browser did not copy");
  return undefined;
}

/** A function that calls `act` once nobody has called it for `delayMs`; its `now()` calls `act` at once instead. */
export function debounced(act, delayMs) {
  let timer = 0;
  const soon = () => {
    clearTimeout(timer);
    timer = setTimeout(act, delayMs);
  };
  soon.now = () => {
    clearTimeout(timer);
    act();
  };
  return soon;
}
