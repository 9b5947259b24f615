// Displays a message: origin, properties, body.

import { h } from "../dom.js";
import { UNKNOWN, plural } from "../format.js";
import { badge, facts } from "../ui.js";

export function messageView(message) {
  const properties = Object.entries(message.properties ?? {});
  const isText = message.payload_encoding !== "base64";
  return h(
    "article.message",
    {},
    h(
      "header",
      {},
      h("span", {}, "Exchange ", h("b", {}, message.exchange || "(default)")),
      h("span", {}, "Routing key ", h("code", {}, message.routing_key || UNKNOWN)),
      h("span", {}, plural(message.payload_bytes, "byte")),
      message.redelivered && badge("redelivered", "warn"),
      !isText && badge("base64", "info"),
    ),
    properties.length ? facts(properties.map(([key, value]) => [key, h("code", {}, shown(key, value))])) : null,
    h("pre", { tabindex: "0", "aria-label": "Body of the message" }, message.payload),
  );
}

const MODES = { 1: "1 (transient)", 2: "2 (persistent)" };

function shown(key, value) {
  if (key === "delivery_mode") return MODES[value] ?? String(value);
  return typeof value === "object" ? JSON.stringify(value) : String(value);
}
