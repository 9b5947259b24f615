// The node's sample stream, one connection per page, with a bounded history.

import { isLoggedOut, open } from "./api.js";

const HISTORY = 300;
const SILENCE_MS = 6000;
const FRESH_S = 3;
const FIRST_PAUSE_MS = 1000;
const LONGEST_PAUSE_MS = 5000;

const subscribers = new Set();
const watchers = new Set();
const past = [];
let state = "connecting";
let stopCurrent = null;
let currentTopics = "";
let retryTimer = 0;
let pauseMs = FIRST_PAUSE_MS;
let isOn = false;
let isPlanned = false;

/** Subscribe to samples with these topics; returns the unsubscribe function. `recalled` is called with a new history. */
export function subscribe(topics, callback, recalled = () => {}) {
  const subscriber = { topics, callback, recalled };
  subscribers.add(subscriber);
  plan();
  return () => {
    subscribers.delete(subscriber);
    plan();
  };
}

/** The history, oldest first: {at, rates, gauges, latency_ms}, at most HISTORY samples. */
export const history = () => past;

/** Call back with "connecting", "live" or "down", now and at each change; returns the unsubscribe function. */
export function onState(callback) {
  watchers.add(callback);
  callback(state);
  return () => watchers.delete(callback);
}

export function start() {
  isOn = true;
  plan();
}

export function stop() {
  isOn = false;
  disconnect();
  past.length = 0;
  setState("connecting");
}

/** Retry now. */
export function tryNow() {
  clearTimeout(retryTimer);
  currentTopics = "";
  plan();
}

// A hidden tab disconnects, to cost the node nothing.
document.addEventListener("visibilitychange", () => (document.hidden ? disconnect() : plan()));

// Navigation changes the topics twice in a moment: reconnect only once.
function plan() {
  if (isPlanned) return;
  isPlanned = true;
  queueMicrotask(() => {
    isPlanned = false;
    connect();
  });
}

function connect() {
  if (!isOn || document.hidden) return;
  const topics = [...new Set(["overview", ...[...subscribers].flatMap((one) => one.topics)])].sort().join(",");
  if (topics === currentTopics) return;
  disconnect();
  currentTopics = topics;
  const ending = new AbortController();
  stopCurrent = () => ending.abort();
  listen(topics, ending.signal).catch((error) => {
    if (ending.signal.aborted) return;
    currentTopics = "";
    if (isLoggedOut(error)) return;
    setState("down");
    retryTimer = setTimeout(connect, pauseMs);
    pauseMs = Math.min(pauseMs * 1.6, LONGEST_PAUSE_MS);
  });
}

function disconnect() {
  clearTimeout(retryTimer);
  stopCurrent?.();
  stopCurrent = null;
  currentTopics = "";
}

// fetch instead of EventSource, which cannot send headers: an ended session would make the
// browser show its own login dialog, and errors have no reason.
async function listen(topics, signal) {
  const query = new URLSearchParams({ topics, history: isPastComplete() ? 0 : 1 });
  const answer = await open(`/api/flyball/stream?${query}`, {
    signal,
    headers: { Accept: "text/event-stream" },
  });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await withinLimit(reader);
    if (done) throw new Error("stream closed");
    buffer += value;
    const events = buffer.split(/\r?\n\r?\n/);
    buffer = events.pop();
    for (const event of events) hear(event);
  }
}

// A hung node or a lost network does not close the stream.
async function withinLimit(reader) {
  let timer;
  const silence = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("no data received")), SILENCE_MS);
  });
  try {
    return await Promise.race([reader.read(), silence]);
  } catch (error) {
    reader.cancel().catch(() => {});
    throw error;
  } finally {
    clearTimeout(timer);
  }
}

function hear(event) {
  const data = event
    .split(/\r?\n/)
    .filter((line) => line.startsWith("data:"))
    .map((line) => line.slice(5).trimStart())
    .join("\n");
  if (!data) return;
  const sample = JSON.parse(data);
  pauseMs = FIRST_PAUSE_MS;
  if (sample.history) recall(sample.history);
  remember(sample);
  setState("live");
  for (const subscriber of [...subscribers]) subscriber.callback(sample);
}

function isPastComplete() {
  return past.length > 0 && Date.now() / 1000 - past[past.length - 1].at < FRESH_S;
}

function recall(samples) {
  past.length = 0;
  for (const sample of samples) remember(sample);
  for (const subscriber of [...subscribers]) subscriber.recalled();
}

function remember({ at, rates, gauges, latency_ms }) {
  if (past.length && at <= past[past.length - 1].at) return;
  past.push({ at, rates, gauges, latency_ms });
  if (past.length > HISTORY) past.shift();
}

function setState(wanted) {
  if (state === wanted) return;
  state = wanted;
  for (const watcher of [...watchers]) watcher(wanted);
}
