// The model registry: the version in force of each model and scope, and why the previous version was replaced.

import { toModel } from "../addresses.js";
import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { ago, count, dateTime, plural } from "../format.js";
import { forMonitors } from "../guard.js";
import { Table, local } from "../table.js";
import { card, empty, page, tile, tiles } from "../ui.js";
import { evidenceText, nameOf, stateBadges } from "./model-view.js";

export const title = "Models";

const LEAD = "The models that steer this domain: what is in force where, since when, from which traces.";
const IMPORT = "flyball model import capacity queue:NAME capacity.json";
const REFRESH_MS = 5000;

export const mount = forMonitors(title, mountModels);

function mountModels(root) {
  const numbers = {
    models: tile("Models"),
    inForce: tile("In force"),
    shadow: tile("In shadow"),
    forced: tile("Forced"),
    quarantined: tile("Quarantined"),
  };
  const load = async () => {
    const versions = await get("/api/flyball/models");
    showNumbers(numbers, versions);
    return rowsOf(versions);
  };
  const table = modelTable(load);
  fill(root, page(title, { lead: LEAD }, tiles(...Object.values(numbers)), card("In use", {}, table.element)));
  return () => table.destroy();
}

/** One row for each model: its version in force, or else its newest one, with the one in shadow and the previous one. */
function rowsOf(versions) {
  const models = Map.groupBy(versions, ({ kind, scope }) => JSON.stringify([kind, scope]));
  return [...models].map(([key, all]) => {
    const inForce = all.find(({ state }) => state === "in_force");
    // The list is by model, the newest version first.
    const shown = inForce ?? all[0];
    const earlier = all.filter((one) => one !== shown && one.valid_until !== null);
    return {
      ...shown,
      key,
      shadow: all.find(({ state }) => state === "shadow") ?? null,
      previous: earlier.reduce((last, one) => (last && last.valid_until >= one.valid_until ? last : one), null),
    };
  });
}

function showNumbers(numbers, versions) {
  const inState = (state) => versions.filter((version) => version.state === state);
  const inForce = inState("in_force");
  const forced = inForce.filter((version) => version.is_forced).length;
  const quarantined = inState("quarantined").length;
  const models = new Set(versions.map(({ kind, scope }) => JSON.stringify([kind, scope]))).size;
  numbers.models.set(count(models), { more: plural(versions.length, "version") });
  numbers.inForce.set(count(inForce.length), { more: `${inForce.filter((one) => one.is_pinned).length} pinned` });
  numbers.shadow.set(count(inState("shadow").length), { more: "on trial" });
  numbers.forced.set(count(forced), { tone: forced ? "warn" : "", more: "not sound, and in force" });
  numbers.quarantined.set(count(quarantined), { tone: quarantined ? "warn" : "", more: "rolled back" });
}

function modelTable(load) {
  const columns = [
    {
      key: "scope",
      label: "Scope",
      value: nameOf,
      render: (row) => h("a", { href: toModel(row) }, row.scope),
    },
    { key: "kind", label: "Kind" },
    {
      key: "state",
      label: "State",
      value: (row) => `${row.version} ${row.state} ${row.is_pinned} ${row.is_sound} ${row.is_forced} ${row.shadow?.version}`,
      render: (row) => [
        h("div.states", {}, stateBadges(row)),
        row.shadow && h("div.note", {}, `version ${row.shadow.version} in shadow`),
      ],
    },
    { key: "summary", label: "Model", isWide: true },
    {
      key: "since",
      label: "Since",
      numeric: true,
      value: (row) => `${dateTime(row.since)} ${ago(row.since)}`,
      render: (row) => [h("div", {}, dateTime(row.since)), h("div.note", {}, ago(row.since))],
    },
    { key: "evidence_brief", label: "Evidence", sort: false, isWide: true, value: evidenceText },
    {
      key: "previous",
      label: "Why the previous one went",
      sort: false,
      isWide: true,
      value: ({ previous }) => (previous ? `version ${previous.version}: ${previous.reason || "no reason given"}` : ""),
    },
  ];
  return new Table({
    label: "Models",
    columns,
    key: (row) => row.key,
    load: local(load, { columns, text: (row) => `${nameOf(row)} ${row.summary}` }),
    sort: "scope",
    refreshMs: REFRESH_MS,
    filterLabel: "Filter models",
    empty: () => empty(
      "No models yet",
      ["Loops and placement use their defaults. Publish what the pipeline has found, for example: ", h("code", {}, IMPORT)],
    ),
  });
}
