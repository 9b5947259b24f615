// Built-in experiments, and reports, shown in a sandboxed frame.

import { toReport } from "../addresses.js";
import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { bytes, count, dateTime, plural } from "../format.js";
import { Gallery } from "../gallery.js";
import { lookAt } from "../looking.js";
import { Table, local } from "../table.js";
import { attempt } from "../toast.js";
import { actionButton, badge, card, crumb, empty, facts, page, problemBox, slot } from "../ui.js";

export const title = "Experiments";

const FOUND = "Reports are read from the folder “reports” in the node's data folder, and from --reports.";
const MAKE = "flyball pipeline report results --out DATA/reports/NAME";

export function mount(root, { query }) {
  return query.has("report") ? mountReport(root, query.get("report")) : mountAll(root);
}

const titleOf = (report) => report.title.replace(/ · Flyball$/, "");

function mountAll(root) {
  const reports = reportTable();
  const experiments = experimentGallery();
  const problem = slot("");
  fill(
    root,
    page(
      title,
      { lead: "Experiments of the lab, and their reports." },
      card("Reports", { note: FOUND }, reports.element),
      h("h2", {}, "Built-in experiments"),
      problem.element,
      experiments.element,
    ),
  );
  get("/api/flyball/experiments").then((all) => experiments.show(all), problem.fail);
  return () => {
    reports.destroy();
    experiments.destroy();
  };
}

function reportTable() {
  const columns = [
    {
      key: "title",
      label: "Report",
      value: (report) => `${report.title} ${report.name}`,
      render: (report) => [h("a", { href: toReport(report.name) }, titleOf(report)), h("div.note", {}, report.name)],
    },
    { key: "created", label: "Made", numeric: true, value: (report) => dateTime(report.created) },
    { key: "files", label: "Files", numeric: true, sort: false, value: (report) => count(report.files.length) },
    { key: "open", label: "Open", sort: false, value: (report) => report.url, render: openButtons },
  ];
  return new Table({
    label: "Reports",
    columns,
    key: (report) => report.name,
    load: local(() => get("/api/flyball/reports"), { columns, text: (report) => `${report.title} ${report.name}` }),
    sort: "created",
    isDescending: true,
    filterLabel: "Filter reports",
    refreshMs: 10000,
    empty: () => empty(
      "No reports yet",
      ["Run an experiment from the list below, then write its report to this folder: ", h("code", {}, MAKE), "."],
    ),
  });
}

function openButtons(report) {
  const label = (what) => ({ "aria-label": `${what}: ${titleOf(report)}` });
  return h(
    "div.buttons",
    {},
    h("a.button.small", { href: toReport(report.name), ...label("Show here") }, "Show here"),
    h("a.button.small", { href: report.url, target: "_blank", rel: "noopener", ...label("New tab") }, "New tab"),
  );
}

function experimentGallery() {
  return new Gallery({
    label: "Experiments",
    noun: "experiment",
    key: (one) => one.name,
    text: (one) => `${one.title} ${one.name}`,
    make: (one) => ({ element: experimentCard(one), update() {}, destroy() {} }),
    empty: () => empty("No experiments found", "Reinstall Flyball: they are part of the package."),
  });
}

function experimentCard({ title: name, name: place, about, source, workload, target, factors, figures, command }) {
  const shown = [...new Set(figures)].filter(Boolean);
  return card(
    name,
    { note: place, level: 3 },
    about && h("p", {}, about),
    h("div.badges", {}, shown.map((figure) => badge(figure))),
    facts([
      ["Workload", `${workload ?? "none"} on ${target}`],
      factors.length > 0 && ["Varies", factors.join(", ")],
      source && ["Source", source],
    ]),
    commandView(command),
  );
}

function commandView(command) {
  const done = "Command copied to the clipboard.";
  const copy = () => attempt(() => navigator.clipboard.writeText(command), done);
  // Browsers allow copying only on localhost and HTTPS.
  return h("div.command", {}, h("code", {}, command), navigator.clipboard && actionButton("Copy", { onclick: copy }));
}

async function mountReport(root, name) {
  const back = crumb("#/experiments", "Experiments");
  const all = await lookAt(root, "/api/flyball/reports", name, back);
  if (all === null) return;
  const report = all.find((one) => one.name === name);
  if (!report) {
    const missing = { reason: `Report “${name}” not found; it may have been deleted.`, advice: FOUND };
    fill(root, page(name, { crumb: back }, problemBox(missing)));
    return;
  }
  // No allow-same-origin: scripts in a report must not access this node.
  const frame = h(
    "iframe.report",
    { title: titleOf(report), src: report.url, sandbox: "allow-scripts allow-downloads" },
  );
  const newTab = h("a.button", { href: report.url, target: "_blank", rel: "noopener" }, "Open in a new tab");
  const files = report.files.filter((file) => file.name !== "report.html");
  fill(
    root,
    page(
      titleOf(report),
      { crumb: back, lead: `${report.name}, made ${dateTime(report.created)}`, actions: [newTab] },
      frame,
      files.length ? card("Tables and models", { note: plural(files.length, "file") }, fileList(files)) : null,
    ),
  );
}

function fileList(files) {
  const line = (file) => [h("a", { href: file.url, download: "" }, file.name), h("span.note", {}, bytes(file.bytes))];
  return h("ul.files", {}, files.map((file) => h("li", {}, line(file))));
}
