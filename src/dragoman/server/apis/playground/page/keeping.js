// The conversation outlives a reload: it is kept in this browser, bounded, until a new one is begun.

const NAME = "dragoman-chat";
const MOST_CHARS = 400_000; // of a browser's 5 million for a site

/** Keep the messages; the oldest turns, and pictures before them, are left out where all would be too much. */
export function keep(messages) {
  let kept = messages;
  let text = JSON.stringify(kept);
  if (text.length > MOST_CHARS) {
    kept = kept.map((one) => ({ ...one, ...(one.pictures ? { pictures: [] } : {}) }));
    text = JSON.stringify(kept);
  }
  while (text.length > MOST_CHARS && kept.length) {
    const next = kept.findIndex((one, place) => place > 0 && one.role === "user");
    kept = next < 0 ? [] : kept.slice(next);
    text = JSON.stringify(kept);
  }
  try {
    if (kept.length) localStorage.setItem(NAME, text);
    else localStorage.removeItem(NAME);
  } catch {
    // storage is switched off or full: the conversation is kept as long as the page
  }
}

/** What was kept; [] if nothing was, or nothing that this page understands. */
export function kept() {
  try {
    const found = JSON.parse(localStorage.getItem(NAME) ?? "[]");
    return Array.isArray(found) && found.every(isMessage) ? found : [];
  } catch {
    return [];
  }
}

function isMessage(one) {
  if (typeof one?.text !== "string") return false;
  if (one.role === "user") return Array.isArray(one.pictures) && one.pictures.every((url) => typeof url === "string" && url.startsWith("data:image/"));
  if (one.role === "assistant") return Array.isArray(one.calls) && one.calls.every((call) => typeof call?.name === "string" && typeof call.arguments === "string");
  return one.role === "tool" && typeof one.name === "string";
}
