// The application shell: login, navigation, connection state, theme.

import * as api from "./api.js";
import { fill, h, icon, logo } from "./dom.js";
import * as live from "./live.js";
import { toast } from "./toast.js";
import { loading, problemBox, switcher } from "./ui.js";

/** Routes. Modules of `pages/` are loaded on demand. */
const ROUTES = [
  { path: "/", page: "overview", nav: "Overview", group: "Broker" },
  { path: "/queues", page: "queues", nav: "Queues", group: "Broker" },
  { path: "/queues/:vhost/:name", page: "queue", parent: "/queues" },
  { path: "/connections", page: "connections", nav: "Connections", group: "Broker" },
  { path: "/exchanges", page: "exchanges", nav: "Exchanges", group: "Broker" },
  { path: "/exchanges/:vhost/:name", page: "exchange", parent: "/exchanges" },
  { path: "/governor", page: "governor", nav: "Governor", group: "Control" },
  { path: "/governor/:name", page: "governor", parent: "/governor" },
  { path: "/admission", page: "admission", nav: "Admission", group: "Control" },
  { path: "/admission/:name", page: "admission", parent: "/admission" },
  { path: "/models", page: "models", nav: "Models", group: "Control" },
  { path: "/models/:kind/:scope", page: "model", parent: "/models" },
  { path: "/domain", page: "domain", nav: "Domain", group: "Control" },
  { path: "/experiments", page: "experiments", nav: "Experiments", group: "Lab" },
];

const app = document.querySelector("#app");
const frame = {};
let unmount = null;
let turn = 0;
let loginReason = "";

async function begin() {
  api.onLoggedOut(() => showLogin("Your session has ended. Log in again to continue."));
  addEventListener("hashchange", () => api.session.user && showPage({ isFirst: false }));
  addEventListener("keydown", onKey);
  document.querySelector(".skip").addEventListener("click", skip);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", tellTheme);
  live.onState(tellState);
  fill(app, h("main.alone", {}, loading()));
  await enter();
}

/** Show the console, or the login form. Retries until the node answers. */
async function enter() {
  try {
    await api.whoami();
    if (api.has("management")) showShell();
    else showLogin();
  } catch (error) {
    fill(app, h("main.alone", {}, problemBox(error)));
    setTimeout(enter, 2000);
  }
}

async function showLogin(reason = "") {
  // Several responses may report the end of the session at once.
  loginReason ||= reason;
  live.stop();
  leavePage();
  turn += 1;
  const { mount, title } = await import("./pages/login.js");
  const why = loginReason;
  loginReason = "";
  if (app.querySelector("form.login")) return;
  const root = h("main.alone", { id: "content", tabindex: "-1" });
  fill(app, root);
  document.title = titled(title);
  mount(root, { reason: why, onDone: showShell });
}

function showShell() {
  frame.banner = h("div.banner", { role: "alert", hidden: true });
  frame.main = h("main", { id: "content", tabindex: "-1" });
  frame.links = new Map();
  frame.nav = h("nav.side", { id: "side", "aria-label": "Pages" }, navigation(), account());
  frame.menu = h(
    "button.quiet.menu",
    { type: "button", "aria-expanded": "false", "aria-controls": "side", onclick: () => openMenu() },
    icon("menu"),
    "Menu",
  );
  frame.state = h("span.live-state", { role: "status" }, "Connecting");
  const top = h("header.top", {}, h("a.brand", { href: "#/" }, logo(), "Flyball"), frame.state, frame.menu);
  fill(app, h("div.shell", {}, top, frame.nav, h("div.stage", {}, frame.banner, frame.main)));
  live.start();
  showPage({ isFirst: true });
}

function navigation() {
  const groups = Map.groupBy(ROUTES.filter((route) => route.nav), (route) => route.group);
  return [...groups].map(([group, routes]) => [h("h2", {}, group), h("ul", {}, routes.map(link))]);
}

function link(route) {
  const anchor = h("a", { href: `#${route.path}`, onclick: () => openMenu(false) }, icon(route.page), route.nav);
  frame.links.set(route.path, anchor);
  return h("li", {}, anchor);
}

function account() {
  const leave = async () => {
    await api.logOut().catch(() => {});
    showLogin();
  };
  const themes = [["auto", "Auto"], ["light", "Light"], ["dark", "Dark"]];
  return h(
    "div.account",
    {},
    switcher("Colours", themes, document.documentElement.dataset.theme ?? "auto", chooseTheme),
    h("p", {}, h("b", {}, api.session.user.name), h("span.note", {}, api.session.user.tags.join(", ") || "no tag")),
    h("button", { type: "button", onclick: leave }, "Log out"),
    h("a", { href: "/web/glossary.html" }, "Glossary"),
  );
}

function openMenu(isOpen = frame.menu.getAttribute("aria-expanded") !== "true") {
  frame.menu.setAttribute("aria-expanded", String(isOpen));
  frame.nav.classList.toggle("open", isOpen);
}

/** Return the route of an address: {route, params}. */
function find(hash) {
  const [where, query = ""] = hash.replace(/^#/, "").split("?");
  const parts = (where || "/").split("/");
  for (const route of ROUTES) {
    const wanted = route.path.split("/");
    if (wanted.length !== parts.length) continue;
    if (!wanted.every((part, index) => part.startsWith(":") || part === parts[index])) continue;
    const params = { query: new URLSearchParams(query) };
    wanted.forEach((part, index) => {
      if (part.startsWith(":")) params[part.slice(1)] = decoded(parts[index]);
    });
    return { route, params };
  }
  return null;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    // A hand-typed address may have an invalid escape.
    return part;
  }
}

const titled = (text) => `${text} · Flyball`;

/** Clean up after a page, and close its dialog. */
function leavePage() {
  document.querySelector("dialog")?.close();
  const leave = unmount;
  unmount = null;
  if (typeof leave === "function") leave();
}

async function showPage({ isFirst }) {
  const mine = (turn += 1);
  leavePage();
  const found = find(location.hash);
  const root = h("div.page");
  fill(frame.main, root);
  markLink(found?.route);
  openMenu(false);
  try {
    const page = await import(`./pages/${found?.route.page ?? "nowhere"}.js`);
    if (mine !== turn) return;
    document.title = titled(found?.params.name ?? page.title);
    const leave = await page.mount(root, found?.params);
    if (mine === turn) unmount = leave;
    else if (typeof leave === "function") leave();
  } catch (error) {
    if (mine !== turn || api.isLoggedOut(error)) return;
    fill(root, h("h1", {}, "Failed to load this page"), problemBox(error));
  }
  if (mine === turn && !isFirst) arrive(root);
}

/** Move scroll position and focus to the top of the new page. */
function arrive(root) {
  scrollTo(0, 0);
  const heading = root.querySelector("h1");
  heading?.setAttribute("tabindex", "-1");
  heading?.focus({ preventScroll: true });
}

function markLink(route) {
  for (const [where, anchor] of frame.links) {
    if (route && where === (route.parent ?? route.path)) anchor.setAttribute("aria-current", "page");
    else anchor.removeAttribute("aria-current");
  }
}

let wasDown = false;

function tellState(state) {
  if (!frame.banner) return;
  frame.state.dataset.state = state;
  fill(frame.state, { live: "Live", down: "No answer", connecting: "Connecting" }[state]);
  frame.banner.hidden = state !== "down";
  if (state === "down") {
    wasDown = true;
    const again = h("button", { type: "button", onclick: live.tryNow }, "Try now");
    fill(
      frame.banner,
      icon("warn"),
      h(
        "p",
        {},
        h("b", {}, "The node does not answer."),
        " The data below is stale. Retrying; check that ",
        h("code", {}, "flyball serve"),
        " is running.",
      ),
      again,
    );
  } else if (state === "live" && wasDown) {
    wasDown = false;
    toast("Reconnected to the node.", "good");
  }
}

function chooseTheme(theme) {
  if (theme === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem("flyball.theme", theme);
  } catch {
    // Without storage the theme lasts until the page is closed.
  }
  tellTheme();
}

function tellTheme() {
  dispatchEvent(new Event("themechange"));
}

function onKey(event) {
  if (event.key === "Escape" && frame.menu?.getAttribute("aria-expanded") === "true") {
    openMenu(false);
    frame.menu.focus();
  }
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, dialog")) return;
  const filter = document.querySelector("main input.filter");
  if (!filter) return;
  event.preventDefault();
  filter.focus();
  filter.select();
}

function skip(event) {
  event.preventDefault();
  document.querySelector("#content")?.focus();
}

begin();
