// All control loops: setpoint, measurement, control action and stability certificate.

import { toLoop } from "../addresses.js";
import { get, path, put } from "../api.js";
import { confirm } from "../dialog.js";
import { every, fill, h, setText } from "../dom.js";
import { UNKNOWN, ago, clock, percent } from "../format.js";
import { Gallery } from "../gallery.js";
import { forMonitors, onlyAdministrators } from "../guard.js";
import { subscribe } from "../live.js";
import { look, lookAt } from "../looking.js";
import { attempt } from "../toast.js";
import { actionButton, card, crumb, empty, facts, grid, notices, page, slot, tile, tiles } from "../ui.js";
import { badges, caption, certificateView, gainsText, isOff, lawName, lawText } from "./loop.js";
import { limitsText, loopCharts, pendingMode, sampleTimeText, shapeOf, whereText } from "./loop.js";

export const title = "Governor";

const LEAD = "All control loops of the domain, and of clients that report here: setpoint, measurement and control action.";
const HOW = [
  "Start an adaptive consumer that reports here: flyball control run --queue NAME --rate 100 ",
  `--report ${location.protocol}//USER:PASSWORD@${location.host}.`,
].join("");
const FORGOTTEN = "This loop was removed, or has not been reported for ten minutes.";
const REFRESH_MS = 3000;

export const mount = forMonitors(
  title,
  (root, { name }) => (name === undefined ? mountAll(root) : mountOne(root, name)),
);

// All loops

function mountAll(root) {
  const problem = slot("");
  const gallery = new Gallery({
    label: "Loops",
    noun: "loop",
    key: (loop) => loop.name,
    text: (loop) => `${loop.name} ${loop.title} ${loop.node} ${loop.client ?? ""}`,
    make: loopCard,
    empty: () => empty("No control loops", HOW),
  });
  fill(root, page(title, { lead: LEAD }, problem.element, gallery.element));
  const refresh = () => look(async () => {
    gallery.show(inOrder(await get("/api/flyball/loops")));
    problem.show();
  }, problem.fail);
  const stop = every(REFRESH_MS, refresh);
  const unsubscribe = subscribe(["loops"], ({ loops = [] }) => {
    for (const brief of loops) gallery.card(brief.name)?.hear(brief);
    if (loops.some((brief) => !gallery.has(brief.name))) refresh();
  });
  return () => {
    unsubscribe();
    stop();
    gallery.destroy();
  };
}

const RANKS = { running: 0, idle: 1, gone: 2 };

/** Running loops first; those of clients, started on purpose, before those of nodes. */
function inOrder(loops) {
  const rank = (loop) => 2 * RANKS[loop.state] + (loop.place === "client" ? 0 : 1);
  return loops.sort((one, other) => rank(one) - rank(other));
}

function loopCard(loop) {
  const charts = loopCharts(loop);
  const marks = h("div.badges");
  const below = h("p.note");
  const element = card(
    h("a", { href: toLoop(loop.name) }, loop.title),
    { note: loop.name },
    marks,
    h("p", {}, loop.about),
    charts.element,
    below,
  );
  element.classList.add("loop");
  fetchSamples(loop.name, charts);
  return {
    element,
    hear: (brief) => charts.push(brief),
    update(now) {
      element.classList.toggle("gone", isOff(now));
      fill(marks, badges(now));
      const how = `${lawName(now.law)}, ${sampleTimeText(now)}, ${whereText(now)}.`;
      setText(below, isOff(now) ? `Last report ${ago(now.reported_at)}.` : how);
    },
    destroy: charts.destroy,
  };
}

async function fetchSamples(name, charts) {
  try {
    charts.fill((await get(path`/api/flyball/loops/${name}`)).samples);
  } catch {
    // The loop or the node is gone: the chart starts with the next sample.
  }
}

// One loop

async function mountOne(root, name) {
  const where = path`/api/flyball/loops/${name}`;
  const back = crumb("#/governor", "Governor");
  const first = await lookAt(root, where, name, back);
  if (first === null) return null;
  const numbers = {
    setpoint: tile("Setpoint"),
    measurement: tile("Measurement"),
    action: tile("Action"),
    off: tile("Off by"),
  };
  const charts = loopCharts(first, { height: 240 });
  const [marks, remarks, button] = [h("div.badges"), notices(), h("div")];
  const [about, proof] = [slot(), slot()];
  const drawing = card("Over time", { wide: true, note: "the last five minutes" }, charts.element);
  fill(
    root,
    page(
      first.title,
      { crumb: back, lead: first.about, actions: [button] },
      marks,
      remarks.element,
      tiles(...Object.values(numbers)),
      grid(drawing, card("Certificate", {}, proof.element), card("Law", {}, about.element)),
    ),
  );
  let current = null;
  const show = (loop) => {
    drawing.classList.toggle("gone", isOff(loop));
    showNumbers(numbers, loop, loop.last ?? {});
    const isSame = current !== null && lasting(current) === lasting(loop);
    current = loop;
    // Redrawing the button would lose the focus.
    if (isSame) return;
    fill(marks, badges(loop));
    remarks.show(remarksOn(loop));
    proof.show(certificateView(loop));
    about.show(describe(loop));
    fill(button, modeButton(loop, refresh));
  };
  async function refresh() {
    try {
      show(await get(where));
    } catch (error) {
      if (error.status !== 404) return;
      drawing.classList.add("gone");
      fill(button);
      remarks.show([[FORGOTTEN, "warn"]]);
    }
  }
  charts.fill(first.samples);
  show(first);
  const stop = every(REFRESH_MS, refresh);
  const unsubscribe = subscribe(["loops"], ({ loops = [] }) => {
    const brief = loops.find((one) => one.name === name);
    if (!brief) return;
    charts.push(brief);
    showNumbers(numbers, first, brief);
    if (brief.is_shadow !== current.is_shadow || brief.state !== current.state) refresh();
  });
  return () => {
    unsubscribe();
    stop();
    charts.destroy();
  };
}

/** A key of everything that changes rarely. */
function lasting({ last, reported_at, samples, setpoint, ...rest }) {
  return JSON.stringify(rest);
}

function showNumbers(numbers, { measures, acts }, { setpoint, measurement, action }) {
  const [held, done] = [shapeOf(measures.unit), shapeOf(acts.unit)];
  const off = setpoint && Number.isFinite(measurement) ? (measurement - setpoint) / setpoint : null;
  numbers.setpoint.set(held(setpoint), { more: caption(measures) });
  numbers.measurement.set(held(measurement), { more: caption(measures) });
  numbers.action.set(done(action), { more: Number.isFinite(action) ? caption(acts) : "No limit at present" });
  const sign = off > 0 ? "+" : "";
  numbers.off.set(off === null ? UNKNOWN : `${sign}${percent(off)}`, { more: "Relative to the setpoint" });
}

function describe(loop) {
  return facts([
    ["Law", [h("div", {}, lawName(loop.law)), h("div.note", {}, lawText(loop.law))]],
    ["Gains", Object.keys(loop.gains).length ? gainsText(loop.gains) : "none"],
    ["Limits of the action", limitsText(loop)],
    ["Decides", sampleTimeText(loop)],
    ["Runs", whereText(loop)],
    ["Name", h("code", {}, loop.name)],
  ]);
}

function remarksOn(loop) {
  const wish = pendingMode(loop);
  const said = [];
  const say = (text, tone = "info") => said.push([text, tone]);
  if (isOff(loop)) {
    const since = clock(loop.reported_at);
    say(`Not reporting since ${since}. Restart its process, or it is removed from this list.`, "warn");
  } else if (loop.is_shadow) say("Shadow mode: it measures and computes, but does not act.");
  if (loop.state === "idle") say("Idle: there is nothing to control at present.");
  if (wish) say(`A switch to ${wish} mode was requested; it takes effect with the next report.`);
  if (loop.refusal) say(`The switch was refused: ${loop.refusal}`, "warn");
  if (!loop.can_switch) say(`It cannot be switched: ${loop.why_fixed}.`);
  return said;
}

// Switching

/** Return why a loop cannot be switched now, or null. */
function whyNot(loop) {
  if (!loop.can_switch) return `It cannot be switched: ${loop.why_fixed}.`;
  if (isOff(loop)) return "It is not reporting: restart its process.";
  if (!loop.is_shadow) return null;
  if (!loop.certificate) return "It must not act without a stability certificate. Create one with “flyball control design”.";
  if (loop.certificate.is_sound || loop.certificate.is_forced) return null;
  return `It must not act: its certificate shows no stability. ${loop.certificate.reasons.join(" ")}`;
}

function modeButton(loop, refresh) {
  const mode = loop.is_shadow ? "active" : "shadow";
  const change = async () => {
    const isSure = await confirm(questionFor(loop, mode));
    if (!isSure) return;
    const done = mode === "active" ? `“${loop.title}” is active.` : `“${loop.title}” is in shadow mode.`;
    await attempt(() => put(path`/api/flyball/loops/${loop.name}/mode`, { mode }), done);
    await refresh();
  };
  return actionButton(mode === "active" ? "Activate" : "Switch to shadow", {
    tone: mode === "active" ? "primary" : "",
    refused: onlyAdministrators("switch loops") ?? whyNot(loop),
    onclick: change,
  });
}

function questionFor(loop, mode) {
  if (mode === "active") {
    return {
      title: `Activate “${loop.title}”?`,
      text: `It then controls, ${sampleTimeText(loop)}: ${loop.acts.what} (${limitsText(loop)}).`,
      action: "Activate",
      tone: "primary",
    };
  }
  return {
    title: `Switch “${loop.title}” to shadow mode?`,
    text: "It keeps measuring and computing, but no longer acts: disturbances are not corrected.",
    action: "Switch to shadow",
  };
}
