// All queues, sorted, filtered and paged by the node, so that it scales to thousands.

import { toQueue } from "../addresses.js";
import { fill, h } from "../dom.js";
import { seconds } from "../format.js";
import { Table, serverList } from "../table.js";
import { empty, page } from "../ui.js";
import { STATE, badges, number, rate } from "./columns.js";
import { newButton } from "./objects.js";

export const title = "Queues";

const FIELDS = [
  "name,vhost,node,type,state,policy,durable,auto_delete,exclusive,arguments,consumers",
  "messages,messages_ready,messages_unacknowledged",
  "message_stats.publish_details.rate,message_stats.deliver_get_details.rate,message_stats.ack_details.rate",
].join(",");

const COLUMNS = [
  { key: "name", label: "Name", render: (queue) => h("a", { href: toQueue(queue) }, queue.name || "(no name)") },
  { key: "vhost", label: "Vhost" },
  { ...badges("features", "Features", (queue) => features(queue)), isWide: true },
  STATE,
  number("messages_ready", "Ready"),
  number("messages_unacknowledged", "Unacked", "Delivered, not yet acked"),
  number("messages", "Total"),
  number("consumers", "Consumers"),
  rate("publish", "In"),
  rate("deliver_get", "Out"),
  rate("ack", "Acked"),
];

/** Features of a queue as badges. */
export function features(queue) {
  const found = [];
  if (queue.type && queue.type !== "classic") found.push(queue.type);
  if (queue.durable) found.push("durable");
  if (queue.auto_delete) found.push("auto-delete");
  if (queue.exclusive) found.push("exclusive");
  const settings = queue.arguments ?? {};
  if ("x-message-ttl" in settings) found.push(`TTL ${seconds(settings["x-message-ttl"] / 1000)}`);
  if ("x-max-length" in settings || "x-max-length-bytes" in settings) found.push("limited");
  if ("x-max-priority" in settings) found.push("priorities");
  if ("x-dead-letter-exchange" in settings) found.push("dead letters");
  if (queue.policy) found.push(`policy ${queue.policy}`);
  return found;
}

const EXAMPLE = '{"x-message-ttl": 60000, "x-max-length": 1000}';

export function mount(root) {
  const create = () => newButton("queue", { example: EXAMPLE }, () => table.reload());
  const table = new Table({
    label: "Queues",
    columns: COLUMNS,
    key: (queue) => `${queue.vhost}/${queue.name}`,
    load: serverList("/api/queues", { columns: FIELDS }),
    sort: "name",
    filterLabel: "Filter queues by name",
    empty: () => empty(
      "No queues yet",
      "Queues are declared by clients, or here.",
      create(),
    ),
  });
  fill(
    root,
    page(
      title,
      { lead: "Select a queue for details.", actions: [create()] },
      table.element,
    ),
  );
  return () => table.destroy();
}
