// Admission control: load of the backend against its reference, classes and waiting requests.

import { toAdmission, toLoop } from "../addresses.js";
import { get, path } from "../api.js";
import { Chart } from "../chart.js";
import { every, fill, h } from "../dom.js";
import { UNKNOWN, ago, count, digits, ms, perSecond, percent, plural, seconds, short } from "../format.js";
import { Gallery } from "../gallery.js";
import { forMonitors } from "../guard.js";
import { subscribe } from "../live.js";
import { look, lookAt } from "../looking.js";
import { Table, local } from "../table.js";
import { badge, barMeter, card, crumb, empty, facts, grid, notices, page, slot, tile, tiles } from "../ui.js";
import { number } from "./columns.js";

export const title = "Admission";

const LEAD = "Requests wait for admission, so that the database stays busy but is not overloaded.";
const GONE = "Not reporting. Restart the application; it is removed from this list after ten minutes.";
const FORGOTTEN = "Removed: it has not been reported for ten minutes.";
const REFRESH_MS = 3000;

export const mount = forMonitors(
  title,
  (root, { name }) => (name === undefined ? mountAll(root) : mountOne(root, name)),
);

const unitOf = ({ unit }) => ({ ms: "busy ms/s", connections: "connections/s" })[unit] ?? `${unit}/s`;
const costOf = ({ unit }) => (unit === "ms" ? ms : (value) => `${digits(value)} ${unit}`);
const waitingIn = ({ classes }) => classes.reduce((sum, one) => sum + one.waiting, 0);
const loopOf = ({ place, name }) => toLoop(place === "node" ? name : `admission.${name}`);
const isGone = ({ state }) => state === "gone";

/** The charted values, as in its history. */
const pointOf = (state) => ({
  at: state.reported_at,
  reference: state.reference.value,
  load: state.load,
  budget: state.budget,
  in_flight: state.in_flight,
  waiting: waitingIn(state),
});

// All

function mountAll(root) {
  const problem = slot("");
  const gallery = new Gallery({
    label: "Admission controls",
    noun: "admission control",
    key: (one) => one.name,
    text: (one) => `${one.name} ${one.node} ${one.client ?? ""}`,
    make: admissionCard,
    empty: () => empty(
      "No admission controls",
      "Add AdmissionMiddleware to an application, with a LoopReporter for this node's address.",
    ),
  });
  const example = h("code", {}, "AdmissionMiddleware(app, sensor=sensor, reporter=LoopReporter(URL))");
  const advice = h("p.note", {}, "Applications are shown here if their middleware reports: ", example, ".");
  fill(root, page(title, { lead: LEAD }, problem.element, gallery.element, advice));
  const show = (all) => {
    gallery.show(inOrder(all));
    problem.show();
  };
  const unsubscribe = subscribe(["admission"], ({ admission }) => admission && show(admission));
  look(async () => show(await get("/api/flyball/admission")), problem.fail);
  return () => {
    unsubscribe();
    gallery.destroy();
  };
}

/** Applications before nodes, lost ones last. */
function inOrder(all) {
  const rank = (one) => (isGone(one) ? 2 : one.place === "client" ? 0 : 1);
  return all.sort((one, other) => rank(one) - rank(other) || one.name.localeCompare(other.name));
}

function admissionCard(first) {
  const chart = loadChart(first);
  let now = first;
  const classes = classTable(() => now);
  const marks = h("div.badges");
  const about = h("div");
  const element = card(
    h("a", { href: toAdmission(first.name) }, first.name),
    { note: first.place === "node" ? `listings of node ${first.node}` : `reported to ${first.node}`, wide: true },
    marks,
    h("div.halves", {}, chart.element, h("div", {}, about)),
    classes.element,
  );
  fetchHistory(first.name, chart);
  return {
    element,
    update(state) {
      now = state;
      element.classList.toggle("gone", isGone(state));
      fill(marks, badges(state));
      fill(about, facts(briefly(state)));
      if (!isGone(state)) chart.push(state.reported_at, pointOf(state));
      classes.reload();
    },
    destroy() {
      chart.destroy();
      classes.destroy();
    },
  };
}

async function fetchHistory(name, chart) {
  try {
    chart.fill((await get(path`/api/flyball/admission/${name}`)).history);
  } catch {
    // The application or the node is gone: the chart starts with the next sample.
  }
}

function badges(state) {
  return [
    isGone(state) ? badge(`lost, last report ${ago(state.reported_at)}`) : badge("running", "good"),
    state.is_shadow
      ? badge("shadow: all requests start at once", "info")
      : badge("active", isGone(state) ? "" : "good"),
    state.is_held && badge("on hold: connection limit reached", "warn"),
    badge(`r: ${state.reference.state}`),
  ];
}

function briefly(state) {
  const format = (value) => `${short(value)} ${unitOf(state)}`;
  return [
    ["Load", format(state.load)],
    ["Reference r", format(state.reference.value)],
    ["Budget u", format(state.budget)],
    ["In flight", count(state.in_flight)],
    ["Waiting", count(waitingIn(state))],
    ["Pool", poolText(state.pool)],
  ];
}

function poolText({ size, busy, waiting }) {
  const of = size === null ? `${count(busy)} busy` : `${count(busy)} of ${count(size)} busy`;
  const text = waiting ? `${of}, ${count(waiting)} waiting` : of;
  return size ? [text, barMeter(busy / size, { tone: busy >= size ? "warn" : "", label: of })] : text;
}

function loadChart(state, { height = 180 } = {}) {
  return new Chart({
    label: `Load of ${state.name} against its reference`,
    series: [
      { key: "load", label: `Load, ${unitOf(state)}`, color: 1, kind: "area" },
      { key: "reference", label: "Reference r", color: "setpoint", kind: "dashed" },
      { key: "budget", label: "Budget u", color: 2, kind: "step" },
    ],
    format: short,
    height,
  });
}

function classTable(state) {
  const cost = (value) => costOf(state())(value);
  const columns = [
    { key: "class", label: "Class", value: (one) => className(one, state()) },
    {
      key: "cost",
      label: "Cost",
      numeric: true,
      title: "Average cost of a request of the class",
      value: (one) => cost(one.cost),
    },
    {
      key: "odds",
      label: "Odds",
      numeric: true,
      title: "Requests delayed per admitted request",
      value: (one) => digits(one.odds),
    },
    {
      key: "probability",
      label: "Probability",
      numeric: true,
      title: "Probability that a request of the class is admitted at its turn",
      value: (one) => percent(one.probability),
    },
    number("waiting", "Waiting"),
    { key: "arrivals_per_s", label: "Arrivals", numeric: true, value: (one) => perSecond(one.arrivals_per_s) },
    { key: "deadline_s", label: "Deadline", numeric: true, value: (one) => seconds(one.deadline_s) },
    number("served", "Served"),
    number("refused", "Refused"),
    number("failed", "Failed"),
  ];
  const table = new Table({
    label: "Classes",
    noun: "class",
    columns,
    key: (one) => String(one.class),
    load: local(() => state().classes, { columns, text: (one) => String(one.class) }),
    sort: "class",
    refreshMs: null,
    empty: () => empty("No classes yet", "They appear with the first requests."),
  });
  table.element.classList.add("compact");
  return table;
}

/** Classes are numbered from the cheapest on. */
function className(one, state) {
  if (state.classes.length < 2) return "all requests";
  const bound = one.below === null ? "most expensive" : `below ${costOf(state)(one.below)}`;
  return `${one.class}: ${bound}`;
}

// One

async function mountOne(root, name) {
  const where = path`/api/flyball/admission/${name}`;
  const back = crumb("#/admission", "Admission");
  const first = await lookAt(root, where, name, back);
  if (first === null) return null;
  let now = first;
  const numbers = {
    load: tile("Load"),
    reference: tile("Reference r"),
    budget: tile("Budget u"),
    inFlight: tile("In flight"),
    waiting: tile("Waiting"),
    pool: tile("Pool"),
  };
  const load = loadChart(first, { height: 240 });
  const requests = requestChart(first);
  const classes = classTable(() => now);
  const kinds = kindTable(() => now);
  const [marks, remarks, about] = [h("div.badges"), notices(), h("div")];
  const loadCard = card("Load against r", { wide: true }, load.element);
  fill(
    root,
    page(
      name,
      { crumb: back, lead: LEAD, actions: [h("a.button", { href: loopOf(first) }, "Loop and certificate")] },
      marks,
      remarks.element,
      tiles(...Object.values(numbers)),
      grid(loadCard, card("Requests", {}, requests.element), card("Pool and control", {}, about)),
      card("Classes", { note: "cheapest first" }, classes.element),
      card("Kinds of requests", { note: "with their costs" }, kinds.element),
    ),
  );
  const show = (state) => {
    now = { ...now, ...state };
    loadCard.classList.toggle("gone", isGone(now));
    showNumbers(numbers, now);
    fill(marks, badges(now));
    remarks.show(isGone(now) ? [[GONE, "warn"]] : []);
    fill(about, facts(poolFacts(now)));
    classes.reload();
  };
  const hear = ({ admission = [] }) => {
    const state = admission.find((one) => one.name === name);
    if (!state) return;
    show(state);
    for (const chart of [load, requests]) if (!isGone(state)) chart.push(state.reported_at, pointOf(state));
  };
  for (const chart of [load, requests]) chart.fill(first.history);
  show(first);
  const unsubscribe = subscribe(["admission"], hear);
  const stop = every(REFRESH_MS, async () => {
    try {
      now = { ...now, keys: (await get(where)).keys };
      kinds.reload();
    } catch (error) {
      if (error.status === 404) remarks.show([[FORGOTTEN, "warn"]]);
    }
  });
  return () => {
    unsubscribe();
    stop();
    for (const part of [load, requests, classes, kinds]) part.destroy();
  };
}

function showNumbers(numbers, state) {
  const unit = unitOf(state);
  const { size, busy, waiting } = state.pool;
  const ratio = state.reference.value > 0 ? `${percent(state.load / state.reference.value)} of r` : unit;
  numbers.load.set(short(state.load), { more: `${unit}, ${ratio}` });
  numbers.reference.set(short(state.reference.value), { more: `${unit}, ${state.reference.state}` });
  numbers.budget.set(short(state.budget), { more: unit });
  const streams = state.streams ? `and ${plural(state.streams, "stream")}` : "requests";
  numbers.inFlight.set(count(state.in_flight), { more: streams });
  numbers.waiting.set(count(waitingIn(state)), { more: "requests" });
  const held = size === null ? count(busy) : `${count(busy)} / ${count(size)}`;
  numbers.pool.set(held, { more: waiting ? `${count(waiting)} waiting for a connection` : "connections busy" });
}

function requestChart(state) {
  return new Chart({
    label: `Requests of ${state.name}`,
    series: [
      { key: "in_flight", label: "In flight", color: 1, kind: "area" },
      { key: "waiting", label: "Waiting", color: 2 },
    ],
    format: short,
  });
}

function poolFacts(state) {
  const { pool } = state;
  return [
    ["Connections", poolText(pool)],
    ["Connections taken", count(pool.connections)],
    ["Total busy time", seconds(Math.round(pool.busy_s))],
    ["Total waiting time", seconds(Math.round(pool.waiting_s))],
    ["Period", `every ${ms(1000 * state.period_s)}`],
    ["Maximum wait", seconds(state.deadline_s)],
    ["Location", state.place === "node" ? `in node ${state.node}` : `in client ${state.client ?? "unknown"}`],
    state.user && ["Reported by", `user ${state.user} to node ${state.node}`],
  ];
}

function kindTable(state) {
  const cost = (value) => (value === null ? UNKNOWN : costOf(state())(value));
  const columns = [
    { key: "key", label: "Kind", render: (kind) => h("code", {}, kind.key) },
    { key: "class", label: "Class", numeric: true },
    { key: "cost", label: "Cost now", numeric: true, value: (kind) => cost(kind.cost) },
    { key: "base_cost", label: "Base cost", numeric: true, value: (kind) => cost(kind.base_cost) },
    number("requests", "Requests"),
  ];
  const rows = () => Object.entries(state().keys ?? {}).map(([key, kind]) => ({ key, ...kind }));
  return new Table({
    label: "Kinds of requests",
    noun: "kind",
    columns,
    key: (kind) => kind.key,
    load: local(rows, { columns, text: (kind) => kind.key }),
    sort: "cost",
    isDescending: true,
    filterLabel: "Filter kinds of requests",
    refreshMs: null,
    empty: () => empty("No requests yet", "Each route becomes a kind of request on first use."),
  });
}
