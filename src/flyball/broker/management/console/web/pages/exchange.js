// One exchange: routing diagram, bindings, publishing.

import { toExchange, toQueue } from "../addresses.js";
import { del, get, path, post, refusal } from "../api.js";
import { confirm } from "../dialog.js";
import { every, fill, h } from "../dom.js";
import { field, json } from "../fields.js";
import { count, perSecond } from "../format.js";
import { look, lookAt } from "../looking.js";
import { RoutingPicture } from "../routing.js";
import { Table, local } from "../table.js";
import { attempt } from "../toast.js";
import { actionButton, badge, card, crumb, empty, facts, grid, page, slot } from "../ui.js";
import { ARGUMENTS, ROUTING_KEY, rateOf } from "./columns.js";
import { features } from "./exchanges.js";
import { deleteButton, description, publishCard } from "./objects.js";

export const title = "Exchange";

export async function mount(root, { vhost, name }) {
  const where = path`/api/exchanges/${vhost}/${name}`;
  const back = crumb("#/exchanges", "Exchanges");
  const first = await lookAt(root, where, name, back);
  if (first === null) return null;
  const exchange = { vhost, name, where, isDefault: first.name === "" };
  let leading = [];
  const about = slot();
  const picture = new RoutingPicture();
  const bindings = bindingTable(exchange, () => leading, () => refresh());

  const refresh = () => look(async () => {
    const [now, out, into] = await Promise.all([
      get(where),
      get(`${where}/bindings/source`),
      exchange.isDefault ? [] : get(`${where}/bindings/destination`),
    ]);
    about.show(describe(now));
    leading = out;
    picture.show([...into, ...out], { vhost, types: { [first.name]: now.type }, alone: [first.name] });
    bindings.reload();
  }, about.fail);

  const heading = first.name || "(default)";
  fill(
    root,
    page(
      heading,
      { crumb: back, lead: `A ${first.type} exchange in vhost “${vhost}”`, actions: [removal(exchange)] },
      card("About", {}, about.element),
      card("Routing", {}, picture.element),
      card("Bindings", { note: "destinations of its messages" }, bindings.element),
      grid(bindCard(exchange, () => refresh()), publishCard({ vhost, exchange: name })),
    ),
  );
  const stop = every(10000, refresh);
  return () => {
    stop();
    picture.destroy();
    bindings.destroy();
  };
}

function describe(exchange) {
  return facts([
    ["Type", badge(exchange.type, "info")],
    ["Messages in", perSecond(rateOf(exchange, "publish_in"))],
    ["Published so far", count(exchange.message_stats?.publish_in ?? 0)],
    ...description(features(exchange), exchange.arguments),
  ]);
}

function removal({ vhost, name, where, isDefault }) {
  const isBuiltIn = isDefault || name.startsWith("amq.");
  const belongs = "Built-in exchanges cannot be deleted.";
  return deleteButton("exchange", {
    name,
    where,
    text: "Deletes the exchange and its bindings; publishing to it fails from then on. This cannot be undone.",
    refused: isBuiltIn ? belongs : refusal("configure", vhost, name),
  });
}

const FIXED = "The default exchange is bound to every queue; its bindings cannot be changed.";
const changeRefusal = ({ vhost, name, isDefault }) => (isDefault ? FIXED : refusal("read", vhost, name));

function bindingTable(exchange, bindings, done) {
  const { vhost, name } = exchange;
  const unbind = ({ routing_key: key, destination, destination_type: kind, properties_key: id }) => async () => {
    const isSure = await confirm({
      title: "Delete this binding?",
      text: `Messages with routing key “${key}” are no longer routed to “${destination}”.`,
      action: "Remove",
    });
    const place = path`/api/bindings/${vhost}/e/${name}/${kind === "queue" ? "q" : "e"}/${destination}/${id}`;
    if (isSure && (await attempt(() => del(place), "Binding deleted."))) done();
  };
  const button = (binding) => actionButton("Remove", { refused: changeRefusal(exchange), onclick: unbind(binding) });
  const columns = [
    { key: "destination", label: "To", render: (binding) => destinationLink(vhost, binding) },
    { key: "destination_type", label: "Kind", render: (binding) => badge(binding.destination_type) },
    ROUTING_KEY,
    ARGUMENTS,
    { key: "remove", label: "Action", sort: false, value: (binding) => binding.properties_key, render: button },
  ];
  return new Table({
    label: "Bindings",
    columns,
    key: (binding) => `${binding.destination_type}/${binding.destination}/${binding.properties_key}`,
    load: local(bindings, { columns, text: (binding) => `${binding.destination} ${binding.routing_key}` }),
    sort: "destination",
    filterLabel: "Filter bindings by name or key",
    refreshMs: null,
    empty: () => empty(
      "No bindings",
      "Its messages are dropped, or returned if they are mandatory. Bind a queue below.",
    ),
  });
}

function destinationLink(vhost, { destination: name, destination_type: kind }) {
  const to = kind === "queue" ? toQueue : toExchange;
  return h("a", { href: to({ vhost, name }) }, name);
}

function bindCard(exchange, done) {
  const { vhost, name } = exchange;
  const kind = field({ name: "kind", label: "To a", options: [["q", "queue"], ["e", "exchange"]], value: "q" });
  const destination = field({ name: "destination", label: "Name", required: true });
  const key = field({ name: "key", label: "Routing key" });
  const settings = field({
    name: "arguments",
    label: "Arguments (JSON)",
    value: "{}",
    help: 'For a headers exchange, such as {"x-match": "all", "kind": "order"}.',
  });
  const bind = async (event) => {
    event.preventDefault();
    const place = path`/api/bindings/${vhost}/e/${name}/${kind.input.value}/${destination.input.value}`;
    const send = async () => post(
      place,
      { routing_key: key.input.value, arguments: json(settings.input.value, "Arguments") },
    );
    if (await attempt(send, `Bound “${name}” to “${destination.input.value}”.`)) done();
  };
  const button = actionButton("Bind", { tone: "primary", type: "submit", refused: changeRefusal(exchange) });
  const form = h(
    "form",
    { onsubmit: bind },
    h("div.columns", {}, kind.element, destination.element, key.element),
    settings.element,
    h("div.buttons", {}, button),
  );
  return card("Add a binding", {}, form);
}
