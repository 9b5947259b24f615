// Generic building blocks of pages: headings, cards, tiles, facts, notes.

import { fill, h, icon, setText } from "./dom.js";
import { UNKNOWN } from "./format.js";
import { tell, toast } from "./toast.js";

/** A page header with content. */
export function page(title, { lead, actions = [], crumb } = {}, ...children) {
  const head = h(
    "header.page-head",
    {},
    h("div", {}, crumb, h("h1", {}, title), lead && h("p.lead", {}, lead)),
    h("div.buttons", {}, actions),
  );
  return [head, ...children];
}

/** A link back to the parent list. */
export const crumb = (href, text) => h("a.crumb", { href }, icon("left"), text);

export function card(title, { note, wide = false, actions = [], level = 2 } = {}, ...children) {
  const head = title && h(
    "header",
    {},
    h(`h${level}`, {}, title),
    note && h("p.note", {}, note),
    actions.length ? h("div.buttons", {}, actions) : null,
  );
  return h("section.card", { class: wide ? "wide" : "" }, head, children);
}

export const grid = (...cards) => h("div.grid", {}, cards);

/** A key figure: {element, set(text, {tone, more})}. */
export function tile(label, { more = "" } = {}) {
  const value = h("span.value", {}, UNKNOWN);
  const below = h("span.more", {}, more);
  const element = h("li.tile", {}, h("span.label", {}, label), value, below);
  return {
    element,
    set(text, { tone = "", more: extra } = {}) {
      setText(value, text);
      if (extra !== undefined) setText(below, extra);
      element.className = `tile ${tone}`;
    },
  };
}

export const tiles = (...all) => h("ul.tiles", {}, all.map((one) => one.element ?? one));

export const facts = (pairs) => h(
  "dl.facts",
  {},
  pairs.filter(Boolean).map(([label, value]) => h("div", {}, h("dt", {}, label), h("dd", {}, value ?? UNKNOWN))),
);

export const badge = (text, tone = "") => h("span.badge", { class: tone }, text);

/** An empty state: the reason and the next step. */
export const empty = (title, text, ...actions) => h(
  "div.empty",
  {},
  h("h3", {}, title),
  text && h("p", {}, text),
  actions.length ? h("div.buttons", {}, actions) : null,
);

export const notice = (text, tone = "info") => h(
  "p.notice",
  { class: tone },
  icon(tone === "info" ? "info" : "warn"),
  h("span", {}, text),
);

/** A container for notices, [[text, tone], ...]. Updated only on change: a screen reader would read them again. */
export function notices() {
  const element = h("div.notices", { "aria-live": "polite" });
  let shown = "";
  return {
    element,
    show(all) {
      const wanted = JSON.stringify(all);
      if (wanted === shown) return;
      shown = wanted;
      fill(element, all.map(([text, tone]) => notice(text, tone)));
    },
  };
}

/** An error with advice. */
export function problemBox(error) {
  return h(
    "div.problem",
    { role: "alert" },
    icon("warn"),
    h("div", {}, h("p.reason", {}, error.reason ?? error.message), error.advice && h("p.advice", {}, error.advice)),
  );
}

let refusalNumber = 0;

/** A button. With `refused` (a reason) it is inactive, but focusable, and shows the reason. */
export function actionButton(label, { tone = "", refused = null, onclick, type = "button" }) {
  const act = onclick && ((event) => Promise.resolve(onclick(event)).catch(tell));
  if (!refused) return h("button", { type, class: tone, onclick: act }, label);
  const id = `refusal-${(refusalNumber += 1)}`;
  const refuse = (event) => {
    event.preventDefault();
    toast(refused, "bad");
  };
  const button = h(
    "button",
    { type, class: tone, "aria-disabled": "true", "aria-describedby": id, title: refused, onclick: refuse },
    label,
  );
  return h("span.refused", {}, button, h("span.aside", { id }, refused));
}

let switchNumber = 0;

/** A segmented control: [[value, text], ...]. */
export function switcher(label, choices, current, onchange) {
  const name = `switch-${(switchNumber += 1)}`;
  const option = ([value, text]) =>
    h(
      "label",
      {},
      h("input", { type: "radio", name, value, checked: value === current, onchange: () => onchange(value) }),
      h("span", {}, text),
    );
  return h("fieldset.switcher", {}, h("legend.aside", {}, label), choices.map(option));
}

/** A thin bar from 0 to 1. */
export function barMeter(ratio, { tone = "", label = "" } = {}) {
  const share = Math.max(0, Math.min(1, ratio || 0));
  const bar = h("span", { style: { width: `${(100 * share).toFixed(1)}%` } });
  return h("span.meter", { class: tone, role: "img", "aria-label": label || `${Math.round(100 * share)} %` }, bar);
}

/** Shown until the first response. */
export const loading = (text = "Loading …") => h("p.loading", { role: "status" }, text);

/** A container that is refreshed: show(children) or fail(error). */
export function slot(...first) {
  const element = h("div.slot", {}, first.length ? first : loading());
  return {
    element,
    show: (...children) => fill(element, ...children),
    fail: (error) => fill(element, problemBox(error)),
  };
}
