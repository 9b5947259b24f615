// All exchanges, and a routing diagram.

import { toExchange } from "../addresses.js";
import { get, path } from "../api.js";
import { every, fill, h } from "../dom.js";
import { look } from "../looking.js";
import { RoutingPicture } from "../routing.js";
import { Table, serverList } from "../table.js";
import { badge, card, empty, page } from "../ui.js";
import { badges, rate } from "./columns.js";
import { newButton } from "./objects.js";

export const title = "Exchanges";

const COLUMNS = [
  {
    key: "name",
    label: "Name",
    render: (exchange) => h("a", { href: toExchange(exchange) }, exchange.name || "(default)"),
  },
  { key: "vhost", label: "Vhost" },
  { key: "type", label: "Type", render: (exchange) => badge(exchange.type, "info") },
  badges("features", "Features", (exchange) => features(exchange)),
  rate("publish_in", "In"),
];
const TYPE = {
  name: "type",
  label: "Type",
  options: ["direct", "fanout", "topic", "headers"].map((type) => [type, type]),
  value: "direct",
};
const EXAMPLE = '{"alternate-exchange": "unrouted"}';

export function features(exchange) {
  const found = [];
  if (exchange.durable) found.push("durable");
  if (exchange.auto_delete) found.push("auto-delete");
  if (exchange.internal) found.push("internal");
  if (exchange.arguments?.["alternate-exchange"]) found.push(`alternate: ${exchange.arguments["alternate-exchange"]}`);
  if (exchange.policy) found.push(`policy ${exchange.policy}`);
  return found;
}

export function mount(root) {
  const table = new Table({
    label: "Exchanges",
    columns: COLUMNS,
    key: (exchange) => `${exchange.vhost}/${exchange.name}`,
    load: serverList("/api/exchanges"),
    sort: "name",
    filterLabel: "Filter exchanges by name",
    empty: () => empty("No visible exchanges", "Ask an administrator for a permission in a vhost."),
  });
  const picture = pictureCard();
  const create = newButton("exchange", { fields: [TYPE], example: EXAMPLE }, () => {
    table.reload();
    picture.refresh();
  });
  fill(
    root,
    page(
      title,
      { lead: "Exchanges route published messages to queues.", actions: [create] },
      picture.element,
      table.element,
    ),
  );
  return () => {
    table.destroy();
    picture.destroy();
  };
}

/** The routing diagram of a vhost, with a vhost selector. */
function pictureCard() {
  const picture = new RoutingPicture({
    empty: () => empty(
      "No bindings yet",
      "Every queue can be reached by name through the default exchange. To route by keys, bind a queue on the page of an exchange.",
    ),
  });
  const chooser = h("select", { "aria-label": "Vhost of the diagram", onchange: () => refresh(), hidden: true });

  async function findVhosts() {
    if (chooser.childElementCount) return;
    const names = (await get("/api/vhosts")).map((vhost) => vhost.name);
    fill(chooser, names.map((name) => h("option", { value: name, selected: name === "/" }, name)));
    chooser.hidden = names.length < 2;
  }

  const refresh = () => look(async () => {
    await findVhosts();
    const vhost = chooser.value;
    const [bindings, exchanges] = await Promise.all([
      get(`${path`/api/bindings/${vhost}`}?columns=source,destination,destination_type,routing_key,arguments`),
      get(`${path`/api/exchanges/${vhost}`}?columns=name,type`),
    ]);
    const types = Object.fromEntries(exchanges.map((exchange) => [exchange.name, exchange.type]));
    picture.show(bindings.filter((binding) => binding.source !== ""), { vhost, types });
  }, picture.fail);
  const stop = every(30000, refresh);
  return {
    element: card("Routing", { note: "without the default exchange", actions: [chooser] }, picture.element),
    refresh,
    destroy() {
      stop();
      picture.destroy();
    },
  };
}
