// Shared by queues and exchanges: declare, describe, publish, delete.

import { del, get, path, post, put, refusal, refusalAnywhere } from "../api.js";
import { ask, confirm } from "../dialog.js";
import { h } from "../dom.js";
import { field, json } from "../fields.js";
import { sentence } from "../format.js";
import { attempt, toast } from "../toast.js";
import { actionButton, badge, card } from "../ui.js";

const IS_DURABLE = {
  name: "durable",
  label: "Survives a restart",
  options: [["true", "Yes, durable"], ["false", "No, transient"]],
  value: "true",
};

/** A button with a dialog that declares a “queue” or “exchange”; `fields` are specific to the kind. */
export function newButton(kind, { fields = [], example }, done) {
  const declare = ({ name, vhost, durable, arguments: settings, ...rest }) => put(
    path`/api/${kind}s/${vhost}/${name}`,
    { ...rest, durable: durable === "true", arguments: json(settings, "Arguments") },
  );
  const create = async () => {
    const vhosts = (await get("/api/vhosts")).map((vhost) => [vhost.name, vhost.name]);
    const made = await ask({
      title: `New ${kind}`,
      action: "Create",
      submit: declare,
      fields: [
        { name: "name", label: "Name", required: true },
        { name: "vhost", label: "Vhost", options: vhosts, value: "/" },
        ...fields,
        IS_DURABLE,
        { name: "arguments", label: "Arguments (JSON)", rows: 3, value: "{}", help: `For example ${example}.` },
      ],
    });
    if (made === null) return;
    toast(`${sentence(kind)} “${made.name}” is there.`, "good");
    done();
  };
  return actionButton(`New ${kind}`, { tone: "primary", refused: refusalAnywhere("configure"), onclick: create });
}

/** A button that deletes the object after its name is typed, and returns to the list. */
export function deleteButton(kind, { name, where, text, refused }) {
  const remove = async () => {
    const isSure = await confirm({ title: `Delete “${name}”?`, text, action: "Delete", typed: name });
    const done = `Deleted ${kind} “${name}”.`;
    if (isSure && (await attempt(() => del(where), done))) location.hash = `#/${kind}s`;
  };
  return actionButton("Delete", { tone: "danger", refused, onclick: remove });
}

/** Its features and arguments, one per line. */
export function description(features, settings) {
  const line = ([key, value]) => h("div", {}, h("code", {}, `${key} = ${JSON.stringify(value)}`));
  const lines = Object.entries(settings ?? {}).map(line);
  return [
    ["Features", features.length ? features.map((one) => badge(one)) : "none"],
    ["Arguments", lines.length ? lines : "none"],
  ];
}

const ROUTED = ["The message was routed to at least one queue.", "The message matched no binding and was dropped."];

/** A form that publishes to an exchange or, with `queueName`, to that queue. */
export function publishCard({ vhost, exchange = "amq.default", queueName = null, done = () => {} }) {
  const isStraight = queueName !== null;
  const arrived = [`Published to “${queueName}”.`, `Queue “${queueName}” does not exist any longer.`];
  const [good, bad] = isStraight ? arrived : ROUTED;
  const key = field({ name: "key", label: "Routing key", value: queueName });
  const payload = field({ name: "payload", label: "Message", rows: 4 });
  const persistence = field({
    name: "mode",
    label: "Persistent: survives a restart",
    options: [["2", "Yes, persistent"], ["1", "No, transient"]],
    value: "2",
  });
  const properties = field({
    name: "properties",
    label: "Other properties (JSON)",
    value: "{}",
    help: 'For example {"content_type": "text/plain", "headers": {"a": 1}}.',
  });
  const send = async () => {
    const mode = { delivery_mode: Number(persistence.input.value) };
    const { routed } = await post(path`/api/exchanges/${vhost}/${exchange}/publish`, {
      properties: { ...mode, ...json(properties.input.value, "Other properties") },
      routing_key: key.input.value,
      payload: payload.input.value,
      payload_encoding: "string",
    });
    if (routed) toast(good, "good");
    else toast(bad, "bad");
    done();
  };
  const publish = (event) => {
    event.preventDefault();
    return attempt(send);
  };
  const refused = refusal("write", vhost, exchange);
  const form = h(
    "form",
    { onsubmit: publish },
    !isStraight && key.element,
    payload.element,
    h("div.columns", {}, persistence.element, properties.element),
    h("div.buttons", {}, actionButton("Publish", { tone: "primary", type: "submit", refused })),
  );
  return card("Publish a message", { note: isStraight && "to this queue" }, form);
}
