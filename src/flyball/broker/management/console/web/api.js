// The HTTP API client: requests, errors and the session.

import { sentence } from "./format.js";

/** The node refused, or did not answer (status 0). */
export class Problem extends Error {
  constructor(status, reason, advice = "") {
    super(reason);
    this.name = "Problem";
    this.status = status;
    this.reason = reason;
    this.advice = advice;
  }
}

/** The node requires a login: unlike a missing permission, the login form resolves this. */
export const isLoggedOut = (error) => error instanceof Problem && error.status === 401;
export const isDown = (error) => error instanceof Problem && error.status === 0;

export const session = { user: null };

let whenLoggedOut = () => {};

/** Set the callback for the end of the session. */
export function onLoggedOut(callback) {
  whenLoggedOut = callback;
}

/** Encode path parameters: path`/api/queues/${vhost}/${name}`. */
export const path = (texts, ...parts) => String.raw({ raw: texts }, ...parts.map(encodeURIComponent));

export const get = (where) => request("GET", where);
export const post = (where, body = {}) => request("POST", where, body);
export const put = (where, body = {}) => request("PUT", where, body);
export const del = (where, headers = {}) => request("DELETE", where, undefined, headers);

/** Like fetch, with the header that suppresses the browser's own login dialog. Throws a Problem. */
export async function open(where, options = {}) {
  const headers = { "X-Requested-With": "flyball-console", Accept: "application/json", ...options.headers };
  let answer;
  try {
    answer = await fetch(where, { credentials: "same-origin", ...options, headers });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Problem(
      0,
      "The node does not answer.",
      "Retrying; check that `flyball serve` is running.",
    );
  }
  if (answer.ok) return answer;
  const problem = await told(answer);
  if (answer.status === 401 && !where.startsWith("/api/login")) {
    remember(false);
    session.user = null;
    whenLoggedOut(problem);
  }
  throw problem;
}

async function request(method, where, body, headers = {}) {
  const options = { method, headers };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json", ...headers };
  }
  const answer = await open(where, options);
  const text = await answer.text();
  return text ? JSON.parse(text) : null;
}

const REASONS = {
  403: "Permission denied.",
  404: "Not found; it may have been deleted.",
  429: "Too many attempts.",
};
const ADVICE = {
  403: "Ask an administrator for permission, or log in as another user.",
  404: "Go back to the list.",
  429: "Retry in a few seconds.",
};

async function told(answer) {
  let document = {};
  try {
    document = JSON.parse(await answer.text());
  } catch {
    // The response may come from a proxy.
  }
  const said = document.reason ?? document.error;
  const known = REASONS[answer.status] ?? `The node answered ${answer.status}.`;
  const reason = said && said !== "Not Found" ? sentence(String(said)) : known;
  return new Problem(answer.status, reason, document.advice || ADVICE[answer.status] || "");
}

// Whether there was a login: without it the first request is skipped. The session itself is in a cookie
// that scripts cannot read.
const HINT = "flyball.session";

function remember(isLoggedIn) {
  try {
    if (isLoggedIn) localStorage.setItem(HINT, "1");
    else localStorage.removeItem(HINT);
  } catch {
    // Without storage each reload needs a login.
  }
}

function isRemembered() {
  try {
    return localStorage.getItem(HINT) !== null;
  } catch {
    return false;
  }
}

/** Return the logged-in user, or null. */
export async function whoami() {
  if (!isRemembered()) return null;
  try {
    session.user = await get("/api/whoami");
  } catch (error) {
    if (!isLoggedOut(error)) throw error;
    session.user = null;
  }
  return session.user;
}

export async function logIn(name, password) {
  await post("/api/login", { name, password });
  remember(true);
  return whoami();
}

export async function logOut() {
  remember(false);
  session.user = null;
  await del("/api/login");
}

const INCLUDING = {
  management: ["management", "policymaker", "monitoring", "administrator"],
  monitoring: ["monitoring", "administrator"],
  administrator: ["administrator"],
};

/** Whether the user has this tag, or one that includes it. */
export function has(tag) {
  const tags = session.user?.tags ?? [];
  return INCLUDING[tag].some((one) => tags.includes(one));
}

// The node enforces permissions; this only disables buttons early.
function may(action, vhost, name) {
  const found = session.user?.permissions.find((permission) => permission.vhost === vhost);
  // As in the broker: an empty pattern matches nothing, and the default exchange has this name.
  if (!found || found[action] === "") return false;
  try {
    return new RegExp(found[action]).test(name || "amq.default");
  } catch {
    return true;
  }
}

/** Return why the user may not do it, or null. */
export function refusal(action, vhost, name) {
  if (may(action, vhost, name)) return null;
  const user = session.user?.name;
  return `Read-only access: user “${user}” has no ${action} permission for this in vhost “${vhost}”.`;
}

/** Return why the user may not do it in any vhost, or null. */
export function refusalAnywhere(action) {
  const isSomewhere = session.user?.permissions.some((permission) => permission[action] !== "");
  if (isSomewhere) return null;
  return `Read-only access: user “${session.user?.name}” has no ${action} permission in any vhost.`;
}
