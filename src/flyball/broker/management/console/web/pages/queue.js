// One queue: charts, messages, consumers, bindings and actions.

import { del, get, path, post, refusal } from "../api.js";
import { Chart } from "../chart.js";
import { confirm } from "../dialog.js";
import { every, fill, h } from "../dom.js";
import { field } from "../fields.js";
import { ago, bytes, count, perSecond, plural, short, text } from "../format.js";
import { subscribe } from "../live.js";
import { look, lookAt } from "../looking.js";
import { Table, local } from "../table.js";
import { attempt, toast } from "../toast.js";
import { actionButton, badge, card, crumb, empty, facts, grid, page, slot, tile, tiles } from "../ui.js";
import { ARGUMENTS, PREFETCH, ROUTING_KEY, rateOf } from "./columns.js";
import { messageView } from "./message.js";
import { deleteButton, description, publishCard } from "./objects.js";
import { features } from "./queues.js";

export const title = "Queue";

export async function mount(root, { vhost, name }) {
  const where = path`/api/queues/${vhost}/${name}`;
  const back = crumb("#/queues", "Queues");
  const first = await lookAt(root, where, name, back);
  if (first === null) return null;
  const numbers = {
    ready: tile("Ready"),
    unacked: tile("Unacknowledged"),
    consumers: tile("Consumers"),
    publish: tile("In"),
    deliver: tile("Out"),
    ack: tile("Acknowledged"),
  };
  const charts = makeCharts();
  const about = slot();
  const parked = slot("");
  let now = first;
  const consumers = consumerTable(() => now.consumer_details ?? []);
  const bindings = bindingTable(where);
  const actions = { vhost, name, where, refresh: () => refresh() };
  fill(
    root,
    page(
      name,
      { crumb: back, lead: `In vhost “${vhost}”`, actions: [purgeButton(actions), removal(actions)] },
      tiles(...Object.values(numbers)),
      grid(card("Messages", {}, charts.depth.element), card("Messages per second", {}, charts.rates.element)),
      card("About", {}, about.element),
      parked.element,
      grid(publishCard({ vhost, queueName: name, done: () => refresh() }), getCard(actions)),
      card("Consumers", {}, consumers.element),
      card("Bindings", { note: "sources of its messages" }, bindings.element),
    ),
  );

  const topic = `${encodeURIComponent(vhost)}/${encodeURIComponent(name)}`;
  const unsubscribe = subscribe([`queue:${topic}`], (sample) => {
    const queue = sample.queue?.[topic];
    if (!queue) return;
    showNumbers(numbers, queue);
    const values = { ready: queue.ready, unacked: queue.unacked, ...queue.rates };
    for (const chart of Object.values(charts)) chart.push(sample.at, values);
  });
  const refresh = () => look(async () => {
    now = await get(where);
    about.show(describe(now));
    parked.show(now.messages_parked ? parkedCard(actions, await get(`${where}/parked`)) : "");
    consumers.reload();
  }, about.fail);
  showNumbers(numbers, briefly(first));
  const stop = every(5000, refresh);
  return () => {
    unsubscribe();
    stop();
    consumers.destroy();
    bindings.destroy();
    for (const chart of Object.values(charts)) chart.destroy();
  };
}

function makeCharts() {
  return {
    depth: new Chart({
      label: "Messages",
      series: [
        { key: "ready", label: "Ready", color: 1, kind: "area" },
        { key: "unacked", label: "Unacknowledged", color: 2 },
      ],
      format: short,
    }),
    rates: new Chart({
      label: "Messages per second",
      series: [
        { key: "publish", label: "In", color: 1 },
        { key: "deliver", label: "Out", color: 2 },
        { key: "ack", label: "Acknowledged", color: 3 },
      ],
      format: perSecond,
    }),
  };
}

function showNumbers(numbers, { ready, unacked, consumers, rates }) {
  numbers.ready.set(count(ready));
  numbers.unacked.set(count(unacked));
  numbers.consumers.set(count(consumers), { more: consumers === 0 && ready > 0 ? "no consumer" : "" });
  numbers.publish.set(perSecond(rates.publish));
  numbers.deliver.set(perSecond(rates.deliver));
  numbers.ack.set(perSecond(rates.ack));
}

/** Figures from the document, until the first sample arrives. */
function briefly(queue) {
  return {
    ready: queue.messages_ready,
    unacked: queue.messages_unacknowledged,
    consumers: queue.consumers,
    rates: { publish: rateOf(queue, "publish"), deliver: rateOf(queue, "deliver_get"), ack: rateOf(queue, "ack") },
  };
}

function describe(queue) {
  const stats = queue.message_stats ?? {};
  return facts([
    ["State", badge(queue.state)],
    ["Node", text(queue.node)],
    ["Policy", queue.policy ?? "none"],
    ...description(features(queue), queue.arguments),
    ["Bytes ready", bytes(queue.message_bytes_ready)],
    queue.messages_parked > 0 && ["Parked messages", count(queue.messages_parked)],
    ["Messages in memory", count(queue.messages_ram)],
    ["Last used", queue.idle_since ? ago(Date.parse(queue.idle_since) / 1000) : "now"],
    Number.isFinite(queue.head_message_timestamp) && ["Oldest message", ago(queue.head_message_timestamp)],
    ["Published so far", count(stats.publish ?? 0)],
    ["Delivered so far", count(stats.deliver_get ?? 0)],
    ["Redelivered so far", count(stats.redeliver ?? 0)],
  ]);
}

function purgeButton({ vhost, name, where, refresh }) {
  const purge = async () => {
    const isSure = await confirm({
      title: `Purge “${name}”?`,
      text: "All ready messages are deleted. This cannot be undone.",
      action: "Purge",
    });
    if (isSure && (await attempt(() => del(`${where}/contents`), `Purged “${name}”.`))) refresh();
  };
  return actionButton("Purge", { tone: "danger", refused: refusal("read", vhost, name), onclick: purge });
}

function removal({ vhost, name, where }) {
  return deleteButton("queue", {
    name,
    where,
    text: "Deletes the queue with its messages and bindings, and cancels its consumers. This cannot be undone.",
    refused: refusal("configure", vhost, name),
  });
}

const MOST_SHOWN = 20;

/** Parked messages, with actions. */
function parkedCard({ vhost, name, where, refresh }, messages) {
  const refused = refusal("read", vhost, name);
  const act = async (action, done) => {
    await attempt(() => post(`${where}/parked`, { action }), done);
    refresh();
  };
  const drop = async () => {
    const isSure = await confirm({
      title: `Drop the parked messages of “${name}”?`,
      text: "This cannot be undone.",
      action: "Drop",
    });
    if (isSure) await act("drop", "Dropped the parked messages.");
  };
  const requeue = () => act("requeue", "Requeued the parked messages.");
  const shown = messages.slice(0, MOST_SHOWN).map(({ id, reason, problem }) => h(
    "li",
    {},
    `Message ${id}, ${reason}: ${problem}`,
  ));
  return card(
    "Parked messages",
    { note: `${plural(messages.length, "message")} that could not be dead-lettered` },
    h("ul", {}, ...shown),
    h(
      "div.buttons",
      {},
      actionButton("Requeue all", { refused, onclick: requeue }),
      actionButton("Drop all", { tone: "danger", refused, onclick: drop }),
    ),
  );
}

const MODES = [
  ["ack_requeue_true", "Peek: keep them in the queue"],
  ["ack_requeue_false", "Get: remove them from the queue"],
];

function getCard({ vhost, name, where, refresh }) {
  const mode = field({
    name: "mode",
    label: "How",
    options: MODES,
    value: "ack_requeue_true",
    help: "Peeked messages count as redelivered afterwards.",
  });
  const amount = field({ name: "count", label: "How many", type: "number", value: "5", min: 1, max: 100 });
  const found = h("div.messages", { "aria-live": "polite" });
  const fetchThem = async (event) => {
    event.preventDefault();
    const isTaking = mode.input.value === "ack_requeue_false";
    const wanted = Number(amount.input.value) || 1;
    const question = {
      title: `Remove ${plural(wanted, "message")} from “${name}”?`,
      text: "They are shown here once and removed from the queue.",
      action: "Take out",
    };
    if (isTaking && !(await confirm(question))) return;
    await attempt(async () => {
      const messages = await post(
        `${where}/get`,
        { count: wanted, ackmode: mode.input.value, encoding: "auto", truncate: 50000 },
      );
      fill(
        found,
        messages.length ? messages.map(messageView) : empty(
          "The queue is empty",
          "Publish a message to see it here.",
        ),
      );
      if (isTaking && messages.length) toast(`${plural(messages.length, "message")} taken out.`, "good");
    });
    refresh();
  };
  const refused = refusal("read", vhost, name);
  const button = actionButton("Show messages", { tone: "primary", type: "submit", refused });
  const form = h(
    "form",
    { onsubmit: fetchThem },
    h("div.columns", {}, mode.element, amount.element),
    h("div.buttons", {}, button),
  );
  return card("Get messages", { note: "oldest first" }, form, found);
}

function consumerTable(consumers) {
  const columns = [
    { key: "consumer_tag", label: "Tag", render: (consumer) => h("code", {}, consumer.consumer_tag) },
    { key: "channel", label: "Channel", isWide: true, value: (consumer) => consumer.channel_details?.name },
    { key: "ack_required", label: "Acknowledges", value: (consumer) => (consumer.ack_required ? "yes" : "no") },
    PREFETCH,
    { key: "exclusive", label: "Exclusive", value: (consumer) => (consumer.exclusive ? "yes" : "no") },
    { key: "active", label: "Active", value: (consumer) => (consumer.active === false ? "no" : "yes") },
  ];
  return new Table({
    label: "Consumers",
    columns,
    key: (consumer) => `${consumer.channel_details?.name}/${consumer.consumer_tag}`,
    load: local(consumers, { columns, text: (consumer) => consumer.consumer_tag }),
    sort: "consumer_tag",
    refreshMs: null,
    empty: () => empty("No consumers", "Messages stay in the queue until a client consumes it."),
  });
}

function bindingTable(where) {
  const columns = [
    { key: "source", label: "From exchange", value: (binding) => binding.source || "(default)" },
    ROUTING_KEY,
    ARGUMENTS,
  ];
  return new Table({
    label: "Bindings",
    columns,
    key: (binding) => `${binding.source}/${binding.properties_key}`,
    load: local(
      () => get(`${where}/bindings`),
      { columns, text: (binding) => `${binding.source} ${binding.routing_key}` },
    ),
    sort: "source",
    refreshMs: 10000,
    empty: () => empty("No bindings", "Add one on the page of an exchange."),
  });
}
