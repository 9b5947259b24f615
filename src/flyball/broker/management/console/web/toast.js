// Short notifications after an action.

import { isLoggedOut } from "./api.js";
import { h, icon } from "./dom.js";

const TOAST_MS = { good: 5000, info: 5000, bad: 12000 };
const MOST_TOASTS = 4;

let shelf = null;

/** Show a notification for a few seconds. */
export function toast(text, tone = "info") {
  if (!shelf) {
    shelf = h("div.toasts", { role: "status", "aria-live": "polite" });
    document.body.append(shelf);
  }
  const close = h(
    "button.quiet",
    { type: "button", "aria-label": "Close this notification", onclick: () => note.remove() },
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

/** Run an action and show its outcome. Returns whether it succeeded. */
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

/** Show an error; an ended session shows the login form instead. */
export function tell(error) {
  if (!isLoggedOut(error)) toast([error.reason ?? error.message, error.advice].filter(Boolean).join(" "), "bad");
}
