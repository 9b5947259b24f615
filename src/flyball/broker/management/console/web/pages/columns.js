// Shared table columns.

import { h } from "../dom.js";
import { UNKNOWN, count, perSecond } from "../format.js";
import { badge } from "../ui.js";

const TONES = { running: "good", flow: "warn", blocking: "warn", blocked: "bad", down: "bad" };

export const number = (key, label, title) => ({
  key,
  label,
  title,
  numeric: true,
  value: (row) => count(row[key]),
});

/** A rate of RabbitMQ's documents. */
export const rateOf = (row, name) => row.message_stats?.[`${name}_details`]?.rate ?? 0;

export const rate = (name, label) => ({
  key: name,
  label,
  numeric: true,
  sort: `message_stats.${name}_details.rate`,
  value: (row) => perSecond(rateOf(row, name)),
});

/** Badges: `words(row)` returns their texts. */
export const badges = (key, label, words) => ({
  key,
  label,
  sort: false,
  value: (row) => words(row).join(" "),
  render: (row) => words(row).map((word) => badge(word)),
});

export const STATE = { key: "state", label: "State", render: ({ state }) => badge(state, TONES[state]) };

export const PREFETCH = {
  key: "prefetch_count",
  label: "Prefetch",
  numeric: true,
  value: ({ prefetch_count: most }) => (most ? count(most) : "no limit"),
};

export const ROUTING_KEY = {
  key: "routing_key",
  label: "Routing key",
  isWide: true,
  render: ({ routing_key: key }) => h("code", {}, key || UNKNOWN),
};

export const ARGUMENTS = {
  key: "arguments",
  label: "Arguments",
  isWide: true,
  sort: false,
  value: ({ arguments: settings }) => (Object.keys(settings ?? {}).length ? JSON.stringify(settings) : ""),
};
