// Overview of the node: rates, queues, latencies by phase, store, memory, alarms. Users without the tag
// monitoring see the messages of their own vhosts.

import { get, has } from "../api.js";
import { Chart } from "../chart.js";
import { every, fill } from "../dom.js";
import { bytes, bytesPerSecond, count, ms, perSecond, percent, plural, seconds, short } from "../format.js";
import { history, subscribe } from "../live.js";
import { look } from "../looking.js";
import { badge, card, facts, grid, notices, page, slot, switcher, tile, tiles } from "../ui.js";

export const title = "Overview";

const PHASES = [
  ["wait", "Waiting for the event loop", 7],
  ["parse", "Parsing", 3],
  ["engine", "Routing and queues", 1],
  ["store", "Store", 2],
  ["emit", "Sending", 4],
];
const KINDS = [["publish", "Publish"], ["get", "Get"]];
const ASK_MS = 4000;
// Maximum distance between two samples.
const GAP_S = 12;

export function mount(root) {
  return has("monitoring") ? mountNode(root) : mountOwn(root);
}

function mountOwn(root) {
  const { memory, cpu, ...numbers } = makeTiles();
  const charts = { rates: ratesChart([], GAP_S), queued: queuedChart(GAP_S) };
  const about = slot();
  fill(
    root,
    page(
      title,
      { lead: "Messages of the vhosts that you have permissions in." },
      tiles(...Object.values(numbers)),
      grid(
        card("Messages per second", { wide: true }, charts.rates.element),
        card("Messages in queues", {}, charts.queued.element),
        card("This node", { wide: true }, about.element),
      ),
    ),
  );
  const see = async () => {
    const overview = await get("/api/overview");
    const sample = sampleOf(overview);
    showMessages(numbers, sample);
    for (const chart of Object.values(charts)) chart.push(sample.at, { ...sample.gauges, ...sample.rates });
    about.show(factsOf(overview, []));
  };
  const stop = every(ASK_MS, () => look(see, about.fail));
  return () => {
    stop();
    for (const chart of Object.values(charts)) chart.destroy();
  };
}

// Converts the overview document to a sample of the stream.
function sampleOf({ message_stats: stats, queue_totals: totals, object_totals: objects }) {
  const rate = (name) => stats[`${name}_details`]?.rate;
  return {
    at: Date.now() / 1000,
    rates: {
      publish: rate("publish"),
      deliver: rate("deliver") + rate("deliver_no_ack"),
      ack: rate("ack"),
      get: rate("get") + rate("get_no_ack"),
      redeliver: rate("redeliver"),
    },
    gauges: { ...objects, ready: totals.messages_ready, unacked: totals.messages_unacknowledged },
  };
}

function mountNode(root) {
  const numbers = makeTiles();
  const charts = makeCharts();
  const alarms = notices();
  const about = slot();
  let kind = "publish";

  const chooseKind = (wanted) => {
    kind = wanted;
    refill();
  };
  fill(
    root,
    page(
      title,
      { lead: "The last five minutes of this node, one sample per second." },
      alarms.element,
      tiles(...Object.values(numbers)),
      grid(
        card("Messages per second", { wide: true }, charts.rates.element),
        card("Messages in queues", {}, charts.queued.element),
        card(
          "Time by phase",
          { note: "mean of a request", actions: [switcher("Kind of request", KINDS, kind, chooseKind)] },
          charts.phases.element,
        ),
        card("Response time", { note: "within the node" }, charts.response.element),
        card("Store", { note: "pending commits" }, charts.store.element),
        card("Memory", {}, charts.memory.element),
        card("Network", {}, charts.network.element),
        card("This node", { wide: true }, about.element),
      ),
    ),
  );

  const spread = (sample) => {
    const latency = sample.latency_ms?.[kind] ?? {};
    return { ...sample.gauges, ...sample.rates, ...latency, at: sample.at };
  };
  const refill = () => {
    const samples = history().map(spread);
    for (const chart of Object.values(charts)) chart.fill(samples);
  };
  const hear = (sample) => {
    const values = spread(sample);
    for (const chart of Object.values(charts)) chart.push(sample.at, values);
    showNumbers(numbers, sample);
    alarms.show(sample.alarms.map((text) => [`Alarm: ${text}.`, "warn"]));
  };
  refill();
  if (history().length) showNumbers(numbers, history()[history().length - 1]);
  const unsubscribe = subscribe(["overview"], hear, refill);
  const stop = every(10000, () => look(async () => about.show(await describe()), about.fail));
  return () => {
    unsubscribe();
    stop();
    for (const chart of Object.values(charts)) chart.destroy();
  };
}

function makeTiles() {
  return {
    ready: tile("Ready", { more: "messages waiting" }),
    unacked: tile("Unacknowledged", { more: "messages delivered" }),
    publish: tile("Published"),
    deliver: tile("Delivered"),
    connections: tile("Connections"),
    queues: tile("Queues"),
    memory: tile("Memory"),
    cpu: tile("CPU", { more: "of one core" }),
  };
}

function showMessages(numbers, { rates, gauges }) {
  numbers.ready.set(short(gauges.ready));
  numbers.unacked.set(short(gauges.unacked));
  numbers.publish.set(perSecond(rates.publish));
  numbers.deliver.set(perSecond(rates.deliver), { more: `${perSecond(rates.ack)} acknowledged` });
  numbers.connections.set(count(gauges.connections), { more: plural(gauges.channels, "channel") });
  numbers.queues.set(count(gauges.queues), { more: plural(gauges.consumers, "consumer") });
}

function showNumbers(numbers, sample) {
  const { rates, gauges } = sample;
  showMessages(numbers, sample);
  numbers.publish.set(perSecond(rates.publish), { more: `${perSecond(rates.confirm)} confirmed` });
  numbers.memory.set(bytes(gauges.memory_bytes), { more: `${bytes(gauges.resident_bytes)} of messages` });
  numbers.cpu.set(percent(gauges.cpu_ratio));
}

const line = (key, label, color, kind) => ({ key, label, color, kind });

const ratesChart = (more, gap) =>
  new Chart({
    label: "Messages per second",
    series: [
      line("publish", "Published", 1, "area"),
      ...more,
      line("deliver", "Delivered", 2),
      line("ack", "Acknowledged", 3),
      line("get", "Got", 4),
      line("redeliver", "Redelivered", 8, "dashed"),
    ],
    format: perSecond,
    height: 220,
    gap,
  });

const queuedChart = (gap) =>
  new Chart({
    label: "Messages in queues",
    series: [line("ready", "Ready", 1, "area"), line("unacked", "Unacknowledged", 2)],
    format: short,
    gap,
  });

function makeCharts() {
  return {
    rates: ratesChart([line("confirm", "Confirmed", 7)]),
    queued: queuedChart(),
    phases: new Chart({
      label: "Time by phase",
      series: PHASES.map(([key, label, color]) => line(key, label, color)),
      stacked: true,
      format: ms,
    }),
    response: new Chart({
      label: "Response time",
      series: [line("p50", "Median", 1), line("p99", "99th percentile", 2)],
      format: ms,
    }),
    store: new Chart({
      label: "Store",
      series: [line("commits", "Commits per second", 3), line("pending_changes", "Pending changes", 2, "area")],
      format: short,
    }),
    memory: new Chart({
      label: "Memory",
      series: [
        line("memory_bytes", "Process", 7, "area"),
        line("resident_bytes", "Messages", 1),
        line("pending_bytes", "Pending bytes", 2),
      ],
      format: bytes,
    }),
    network: new Chart({
      label: "Network",
      series: [line("read_bytes", "Received", 1, "area"), line("written_bytes", "Sent", 2)],
      format: bytesPerSecond,
    }),
  };
}

async function describe() {
  const [overview, nodes] = await Promise.all([get("/api/overview"), get("/api/nodes")]);
  return factsOf(overview, nodes);
}

function factsOf(overview, nodes) {
  const here = nodes.find((node) => node.name === overview.node);
  return facts([
    ["Node", overview.node],
    ["Domain", overview.cluster_name],
    ["Version", overview.product_version],
    here && ["Up for", seconds(Math.round(here.uptime / 1000))],
    ["Exchanges", count(overview.object_totals.exchanges)],
    nodes.length > 1 && ["Running nodes", `${nodes.filter((node) => node.running).length} of ${nodes.length}`],
    overview.listeners && ["Listeners", listeners(overview.listeners)],
  ]);
}

const listeners = (all) => all.map((one) => badge(`${one.protocol} ${one.ip_address}:${one.port}`));
