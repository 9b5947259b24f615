// Asks the node and says what went wrong in words. Knows who is logged in; draws nothing.

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

/** The node wants a log-in first: other than a wrong right, this is cured by the log-in form. */
export const isLoggedOut = (error) => error instanceof Problem && error.status === 401;
export const isDown = (error) => error instanceof Problem && error.status === 0;

export const session = { user: null };

let whenLoggedOut = () => {};

/** Tell what to do when the node does not know us any more. */
export function onLoggedOut(callback) {
  whenLoggedOut = callback;
}

/** Encode what is put into a path: path`/api/queues/${vhost}/${name}`. */
export const path = (texts, ...parts) => String.raw({ raw: texts }, ...parts.map(encodeURIComponent));

export const get = (where) => request("GET", where);
export const post = (where, body = {}) => request("POST", where, body);
export const put = (where, body = {}) => request("PUT", where, body);
export const del = (where, headers = {}) => request("DELETE", where, undefined, headers);

/** As fetch, with the header that keeps the browser's own log-in dialog away. Raises a Problem. */
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
      "The console tries again by itself; see whether `flyball serve` runs.",
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
  403: "You have no right to do this.",
  404: "It is not there (any more).",
  429: "Too many tries.",
};
const ADVICE = {
  403: "Ask an administrator for the right, or log in as another user.",
  404: "Somebody may have deleted it; go back to the list.",
  429: "Wait some seconds, then try again.",
};

async function told(answer) {
  let document = {};
  try {
    document = JSON.parse(await answer.text());
  } catch {
    // Not every answer is ours: a proxy may stand between.
  }
  const said = document.reason ?? document.error;
  const known = REASONS[answer.status] ?? `The node answered ${answer.status}.`;
  const reason = said && said !== "Not Found" ? sentence(String(said)) : known;
  return new Problem(answer.status, reason, document.advice || ADVICE[answer.status] || "");
}

// That there was a log-in: without it the node need not be asked, only to refuse. The session itself is in a cookie
// that no script can read.
const HINT = "flyball.session";

function remember(isLoggedIn) {
  try {
    if (isLoggedIn) localStorage.setItem(HINT, "1");
    else localStorage.removeItem(HINT);
  } catch {
    // A browser that keeps nothing logs in again after each reload.
  }
}

function isRemembered() {
  try {
    return localStorage.getItem(HINT) !== null;
  } catch {
    return false;
  }
}

/** Ask who we are; returns the user, or null if nobody is logged in. */
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

/** Does the user have this tag, or one that includes it? */
export function has(tag) {
  const tags = session.user?.tags ?? [];
  return INCLUDING[tag].some((one) => tags.includes(one));
}

// The node decides in any case: this spares the user a question in vain.
function may(action, vhost, name) {
  const found = session.user?.permissions.find((permission) => permission.vhost === vhost);
  // As for the broker: an empty pattern allows nothing, and the exchange without a name has this one.
  if (!found || found[action] === "") return false;
  try {
    return new RegExp(found[action]).test(name || "amq.default");
  } catch {
    return true;
  }
}

/** Why the user may not do it, or null if so. */
export function refusal(action, vhost, name) {
  if (may(action, vhost, name)) return null;
  const user = session.user?.name;
  return `You may look but not act: user “${user}” has no right to ${action} this in vhost “${vhost}”.`;
}

/** Why the user may not do it in any vhost, or null if it may in some. */
export function refusalAnywhere(action) {
  const isSomewhere = session.user?.permissions.some((permission) => permission[action] !== "");
  if (isSomewhere) return null;
  return `You may look but not act: user “${session.user?.name}” has no right to ${action} anything.`;
}
