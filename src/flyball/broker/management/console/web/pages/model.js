// One model: its version in force with evidence, its other versions, differences between two, and the log of changes.

import { del, get, path, post, put } from "../api.js";
import { ask, confirm } from "../dialog.js";
import { every, fill, h } from "../dom.js";
import { ago, clock, dateTime, digits } from "../format.js";
import { forMonitors, onlyAdministrators } from "../guard.js";
import { look, lookAt } from "../looking.js";
import { Table, local } from "../table.js";
import { attempt, toast } from "../toast.js";
import { actionButton, badge, card, crumb, empty, facts, notices, page, slot } from "../ui.js";
import { evidenceText, stateBadges, stateText } from "./model-view.js";

export const title = "Models";

const REFRESH_MS = 5000;
const REASON = { name: "reason", label: "Reason", help: "For the log of changes." };

export const mount = forMonitors(title, mountModel);

async function mountModel(root, { kind, scope }) {
  const place = path`/api/flyball/models/${kind}/${scope}`;
  const back = crumb("#/models", "Models");
  let model = await lookAt(root, place, `${kind} of ${scope}`, back);
  if (model === null) return null;
  let versions = await get(`${place}/versions`);
  const remarks = notices();
  const [head, changes, log] = [slot(""), slot(""), h("ol.timeline", { "aria-label": "Changes" })];
  const refresh = async () => {
    [model, versions] = await Promise.all([get(place), get(`${place}/versions`)]);
    await show();
  };
  const table = versionTable(() => versions, place, refresh);
  const buttons = h("div.buttons", {});
  fill(
    root,
    page(
      scope,
      { crumb: back, lead: `The ${kind} model for this scope.`, actions: buttons },
      remarks.element,
      card("In force", {}, head.element),
      card("Versions", { note: "newest first" }, table.element),
      card("Changes of parameters", { note: "from the previous version to the one in force" }, changes.element),
      card("Log", { note: "newest first" }, log),
    ),
  );
  let shownRevision = null;
  async function show() {
    if (model.revision === shownRevision) return;
    fill(buttons, headButtons(model, versions, place, refresh));
    remarks.show(remarksOn(model));
    head.show(model.in_force ? versionFacts(model.in_force) : nothingInForce());
    fill(log, model.log.map(logEntry));
    await Promise.all([table.reload(), showChanges(changes, model, versions, place)]);
    shownRevision = model.revision;
  }
  await show();
  const stop = every(REFRESH_MS, () => look(refresh, head.fail));
  return () => {
    stop();
    table.destroy();
  };
}

const refused = () => onlyAdministrators("change models");
const nothingInForce = () => empty("No version is in force", "Consumers of this model use their defaults.");

function remarksOn({ in_force: version, pinned }) {
  if (!version) return [];
  const all = [];
  if (version.is_forced) all.push(["This version is in force although it did not pass: an operator forced it.", "warn"]);
  for (const objection of version.objections) all.push([objection, "bad"]);
  if (pinned !== null) all.push([`Version ${pinned} is pinned: no other version takes over until it is unpinned.`, "info"]);
  return all;
}

function versionFacts(version) {
  return [
    h("div.badges.above", {}, stateBadges(version)),
    facts([
      ["Model", version.summary],
      ["In force since", `${dateTime(version.valid_from)}, ${ago(version.valid_from)}`],
      ["Published", `${dateTime(version.published_at)} by ${version.published_by}`],
      ["Evidence", evidenceText(version)],
      version.reason && ["Why", version.reason],
      version.outcome && ["Observed", h("code", {}, JSON.stringify(version.outcome))],
    ]),
    testList(version.evidence.tests),
  ];
}

function testList(tests) {
  if (!Array.isArray(tests) || !tests.length) return null;
  const line = ({ name, value, limit, reason }) => h(
    "li",
    {},
    badge(reason ? "failed" : "passed", reason ? "bad" : "good"),
    " ",
    h("b", {}, String(name)),
    ` ${digits(value)}, limit ${digits(limit)}`,
    reason && h("span.note", {}, ` ${reason}`),
  );
  return h("ul.tests", { "aria-label": "Tests" }, tests.filter((one) => one && typeof one === "object").map(line));
}

// Versions

function versionTable(versions, place, refresh) {
  const columns = [
    { key: "version", label: "Version" },
    {
      key: "state",
      label: "State",
      value: (row) => `${row.state} ${row.is_pinned} ${row.is_sound} ${row.is_forced}`,
      render: (row) => h("div.states", {}, stateBadges(row).slice(1)),
    },
    { key: "summary", label: "Model", isWide: true },
    {
      key: "valid_from",
      label: "In force",
      value: (row) => `${row.valid_from} ${row.valid_until}`,
      render: (row) => [
        h("div", {}, row.valid_from === null ? "never" : `from ${dateTime(row.valid_from)}`),
        row.valid_until !== null && h("div", {}, `to ${dateTime(row.valid_until)}`),
      ],
    },
    { key: "evidence_brief", label: "Evidence", sort: false, isWide: true, value: evidenceText },
    {
      key: "reason",
      label: "Why",
      isWide: true,
      value: (row) => [row.reason, ...row.objections].filter(Boolean).join("; "),
    },
    {
      key: "act",
      label: "Action",
      sort: false,
      value: (row) => `${row.state} ${row.is_pinned}`,
      render: (row) => versionButtons(row, place, refresh),
    },
  ];
  return new Table({
    label: "Versions",
    columns,
    key: (row) => row.version,
    load: local(versions, { columns, text: (row) => `${row.version} ${row.summary}` }),
    sort: "version",
    isDescending: true,
    refreshMs: null,
    empty: () => empty("No versions", "They were deleted."),
  });
}

function versionButtons(row, place, refresh) {
  const { version, state } = row;
  const file = `${place}/versions/${version}/document`;
  return h(
    "div.buttons",
    {},
    state !== "in_force" && actionButton("Put in force", { refused: refused(), onclick: () => activate(row, place, refresh) }),
    h("a.button.small", { href: file, download: "", "aria-label": `Download version ${version}` }, "Download"),
  );
}

async function activate({ version, is_sound: isSound, state, objections }, place, refresh) {
  const needsForce = isSound === false || ["rejected", "quarantined"].includes(state);
  const warning = needsForce
    ? `It is ${isSound === false ? `not sound: ${objections.join("; ")}` : stateText(state)}. It will be marked as forced.`
    : "It takes over from the version in force at once.";
  await change(
    {
      title: `Put version ${version} in force?`,
      text: warning,
      action: needsForce ? "Force it" : "Put in force",
      tone: needsForce ? "danger" : "primary",
    },
    ({ reason }) => put(`${place}/versions/${version}/state`, { state: "in_force", reason, force: needsForce }),
    `Version ${version} is in force.`,
    refresh,
  );
}

function headButtons({ in_force: present, pinned }, versions, place, refresh) {
  if (!present) return [];
  const number = present.version;
  const pin = pinned === null
    ? actionButton("Pin", { refused: refused(), onclick: () => pinVersion(number, place, refresh) })
    : actionButton("Unpin", { refused: refused(), onclick: () => unpin(number, place, refresh) });
  const held = pinned === null ? null : `Version ${pinned} is pinned: unpin it first.`;
  const back = actionButton("Roll back", {
    tone: "danger",
    refused: refused() ?? held,
    onclick: () => rollBack(number, versions, place, refresh),
  });
  return [pin, back];
}

const pinVersion = (number, place, refresh) => change(
  {
    title: `Pin version ${number}?`,
    text: "It stays in force until it is unpinned. Newer versions may still run in shadow.",
    action: "Pin",
  },
  ({ reason }) => put(`${place}/pin`, { version: number, reason }),
  `Version ${number} is pinned.`,
  refresh,
);

async function unpin(number, place, refresh) {
  const isSure = await confirm({
    title: `Unpin version ${number}?`,
    text: "Newer versions may take over again.",
    action: "Unpin",
    tone: "primary",
  });
  if (isSure && (await attempt(() => del(`${place}/pin`), `Version ${number} is no longer pinned.`))) await refresh();
}

function rollBack(number, versions, place, refresh) {
  const earlier = versions.filter((one) => one.state === "superseded" && one.valid_until !== null);
  const target = earlier.reduce((last, one) => (last && last.valid_until >= one.valid_until ? last : one), null);
  const after = target ? `Version ${target.version} returns` : "Consumers use their defaults";
  return change(
    {
      title: `Roll back version ${number}?`,
      text: `It is quarantined: nothing puts it in force again without force. ${after}.`,
      action: "Roll back",
      tone: "danger",
    },
    ({ reason }) => post(`${place}/rollback`, { reason, expected: number }),
    `Version ${number} was rolled back.`,
    refresh,
  );
}

/** Ask for a reason, make the change, and show it. */
async function change(dialog, submit, done, refresh) {
  if ((await ask({ ...dialog, fields: [REASON], submit })) === null) return;
  toast(done, "good");
  await refresh();
}

// Differences and log

async function showChanges(found, { in_force: present }, versions, place) {
  const others = versions.filter((one) => one.version !== present?.version && one.valid_until !== null);
  if (!present || !others.length) {
    found.show(empty("Nothing to compare", "It needs a version in force, and one that was in force before."));
    return;
  }
  const previous = others.reduce((last, one) => (last.valid_until >= one.valid_until ? last : one));
  try {
    const { differences } = await get(`${place}/diff?from=${previous.version}&to=${present.version}`);
    found.show(differences.length ? differenceTable(differences, previous.version, present.version) : sameDocument());
  } catch (error) {
    found.fail(error);
  }
}

const sameDocument = () => empty("The documents are the same", "They differ in their evidence only.");
const valueText = (value) => (value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value));
const signed = (percent) => `${percent > 0 ? "+" : ""}${percent.toFixed(1)} %`;

function differenceTable(differences, before, after) {
  const columns = [
    { key: "path", label: "Parameter", render: (row) => h("code", {}, row.path) },
    { key: "before", label: `Version ${before}`, numeric: true, value: (row) => valueText(row.before) },
    { key: "after", label: `Version ${after}`, numeric: true, value: (row) => valueText(row.after) },
    {
      key: "change_percent",
      label: "Change",
      numeric: true,
      value: (row) => (row.change_percent === null ? "" : signed(row.change_percent)),
    },
  ];
  const table = new Table({
    label: "Differences",
    columns,
    key: (row) => row.path,
    load: local(differences, { columns, text: (row) => row.path }),
    sort: null,
    pageSize: 20,
    refreshMs: null,
    empty: sameDocument,
  });
  table.reload();
  return table.element;
}

const LOG_TONES = { in_force: "good", shadow: "info", rejected: "warn", quarantined: "bad", pinned: "info" };

function logEntry({ at, by, version, after, reason }) {
  const tone = LOG_TONES[after] ?? "";
  return h(
    "li",
    { class: tone },
    h("time", { title: `${dateTime(at)}, ${ago(at)}`, datetime: new Date(at * 1000).toISOString() }, clock(at)),
    h(
      "div",
      {},
      h("p", {}, badge(stateText(after), tone), " ", h("b", {}, `Version ${version}`), h("span.note", {}, ` by ${by}`)),
      reason && h("p.why", {}, h("span", {}, "because "), reason),
    ),
  );
}
