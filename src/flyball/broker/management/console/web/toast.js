// Short notes after something was done.

import { isLoggedOut } from "./api.js";
import { h, icon } from "./dom.js";

const TOAST_MS = { good: 5000, info: 5000, bad: 12000 };
const MOST_TOASTS = 4;

let shelf = null;

/** Show a note for some seconds. */
export function toast(text, tone = "info") {
  if (!shelf) {
    shelf = h("div.toasts", { role: "status", "aria-live": "polite" });
    document.body.append(shelf);
  }
  const close = h(
    "button.quiet",
    { type: "button", "aria-label": "Close this note", onclick: () => note.remove() },
    icon("close"),
  );
  const note = h(
    "div.toast",
    { class: tone },
    icon(tone === "good" ? "check" : tone === "bad" ? "warn" : "info"),
    h("p", {}, text),
    close,
  );
  shelf.append(note);
  while (shelf.childElementCount > MOST_TOASTS) shelf.firstElementChild.remove();
  setTimeout(() => note.remove(), TOAST_MS[tone]);
}

/** Do something and tell how it went. Returns whether it went well. */
export async function attempt(work, done) {
  try {
    const result = await work();
    const text = typeof done === "function" ? done(result) : done;
    if (text) toast(text, "good");
    return true;
  } catch (error) {
    tell(error);
    return false;
  }
}

/** Show what went wrong; for a session that has ended there is the log-in form. */
export function tell(error) {
  if (!isLoggedOut(error)) toast([error.reason ?? error.message, error.advice].filter(Boolean).join(" "), "bad");
}
