// Admission control: the load of what is behind the requests against what it can bear, and who waits how long.

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

const LEAD = "Requests wait before they begin, so that the database behind them is as busy as it can be, no busier.";
const GONE = "It is gone: nothing is heard of it. Start the application again; it is forgotten after ten minutes.";
const FORGOTTEN = "It has been forgotten: nobody has reported it for ten minutes.";
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

/** What is drawn of it, as in its history. */
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
      "No admission control is known",
      "Put AdmissionMiddleware before an application and give it a LoopReporter with this node's address.",
    ),
  });
  const example = h("code", {}, "AdmissionMiddleware(app, sensor=sensor, reporter=LoopReporter(URL))");
  const advice = h("p.note", {}, "An application is shown here when its middleware reports: ", example, ".");
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

/** Applications before the nodes' own, those that are gone last. */
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
    // It has gone meanwhile, or the node has: what comes next is drawn from now on.
  }
}

function badges(state) {
  return [
    isGone(state) ? badge(`gone, last heard of ${ago(state.reported_at)}`) : badge("running", "good"),
    state.is_shadow
      ? badge("shadow: everybody begins at once", "info")
      : badge("active", isGone(state) ? "" : "good"),
    state.is_held && badge("held: enough connections are busy", "warn"),
    badge(`r: ${state.reference.state}`),
  ];
}

function briefly(state) {
  const format = (value) => `${short(value)} ${unitOf(state)}`;
  return [
    ["Load", format(state.load)],
    ["Reference r", format(state.reference.value)],
    ["Budget u", format(state.budget)],
    ["Begun, not ended", count(state.in_flight)],
    ["Waiting", count(waitingIn(state))],
    ["Pool", poolText(state.pool)],
  ];
}

function poolText({ size, busy, waiting }) {
  const of = size === null ? `${count(busy)} busy` : `${count(busy)} of ${count(size)} busy`;
  const text = waiting ? `${of}, ${count(waiting)} wait for one` : of;
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
      title: "What a request of the class takes, on average",
      value: (one) => cost(one.cost),
    },
    {
      key: "odds",
      label: "Odds",
      numeric: true,
      title: "Requests held back for each one admitted",
      value: (one) => digits(one.odds),
    },
    {
      key: "probability",
      label: "Probability",
      numeric: true,
      title: "That a request of the class is taken when it is its turn",
      value: (one) => percent(one.probability),
    },
    number("waiting", "Waiting"),
    { key: "arrivals_per_s", label: "Arrivals", numeric: true, value: (one) => perSecond(one.arrivals_per_s) },
    { key: "deadline_s", label: "Waits at most", numeric: true, value: (one) => seconds(one.deadline_s) },
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
    empty: () => empty("There are no classes yet", "They come with the first requests."),
  });
  table.element.classList.add("compact");
  return table;
}

/** Classes are numbered from the cheapest. */
function className(one, state) {
  if (state.classes.length < 2) return "all requests";
  const bound = one.below === null ? "the dearest" : `below ${costOf(state)(one.below)}`;
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
    inFlight: tile("Begun, not ended"),
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
      { crumb: back, lead: LEAD, actions: [h("a.button", { href: loopOf(first) }, "Its loop and certificate")] },
      marks,
      remarks.element,
      tiles(...Object.values(numbers)),
      grid(loadCard, card("Requests", {}, requests.element), card("Pool and control", {}, about)),
      card("Classes", { note: "the cheapest first" }, classes.element),
      card("Kinds of requests", { note: "and what each costs" }, kinds.element),
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
  numbers.pool.set(held, { more: waiting ? `${count(waiting)} wait for a connection` : "connections busy" });
}

function requestChart(state) {
  return new Chart({
    label: `Requests of ${state.name}`,
    series: [
      { key: "in_flight", label: "Begun, not ended", color: 1, kind: "area" },
      { key: "waiting", label: "Waiting", color: 2 },
    ],
    format: short,
  });
}

function poolFacts(state) {
  const { pool } = state;
  return [
    ["Connections", poolText(pool)],
    ["Taken so far", count(pool.connections)],
    ["Busy so far", seconds(Math.round(pool.busy_s))],
    ["Waited for so far", seconds(Math.round(pool.waiting_s))],
    ["Decides", `every ${ms(1000 * state.period_s)}`],
    ["A request waits at most", seconds(state.deadline_s)],
    ["Runs", state.place === "node" ? `in node ${state.node}` : `in client ${state.client ?? "unknown"}`],
    state.user && ["Reported by", `user ${state.user} to node ${state.node}`],
  ];
}

function kindTable(state) {
  const cost = (value) => (value === null ? UNKNOWN : costOf(state())(value));
  const columns = [
    { key: "key", label: "Kind", render: (kind) => h("code", {}, kind.key) },
    { key: "class", label: "Class", numeric: true },
    { key: "cost", label: "Cost now", numeric: true, value: (kind) => cost(kind.cost) },
    { key: "base_cost", label: "At its best", numeric: true, value: (kind) => cost(kind.base_cost) },
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
    empty: () => empty("No request has come yet", "Each route becomes a kind of requests when it is first used."),
  });
}
