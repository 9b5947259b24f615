// What there is to say and to draw of one control loop, in words that need no book.

import { Chart } from "../chart.js";
import { h, icon } from "../dom.js";
import { bytes, bytesPerSecond, digits, ms, percent, sentence, short } from "../format.js";
import { badge, notice } from "../ui.js";

const LAWS = {
  p: ["Proportional (P)", "The further the measurement is off, the more it does."],
  i: ["Integral (I)", "It goes on to change the action for as long as the measurement is off."],
  pi: ["Proportional and integral (PI)", "It acts at once when the measurement is off, and on until it is not."],
  pid: ["PID", "It acts on the deviation, on its sum, and on how fast it changes."],
  positional_pid: ["PID, positional", "It acts on the deviation, on its sum, and on how fast it changes."],
  multiplicative: ["Multiplicative", "It multiplies the action by a power of setpoint over measurement."],
  scheduled: ["Scheduled gain", "It knows the curve of what it controls, and has another gain at each place of it."],
  self_tuning: ["Self-tuning", "It estimates while it runs how much an action brings, and sets its gain by that."],
  hysteresis: ["Thresholds", "It adds above one threshold and removes below another, so that it does not flutter."],
};
const SHAPES = { bytes, "bytes/s": bytesPerSecond, "of their capacity": percent };

/** Chart and tile show numbers of a unit like this; the unit itself stands beside, unless the number has it. */
export const shapeOf = (unit) => SHAPES[unit] ?? short;
const withUnit = (unit, value) => (SHAPES[unit] ? shapeOf(unit)(value) : `${short(value)} ${unit}`);
export const caption = ({ what, unit }) => (SHAPES[unit] ? sentence(what) : `${sentence(what)}, ${unit}`);

export const lawName = (law) => LAWS[law]?.[0] ?? law;
export const lawText = (law) => LAWS[law]?.[1] ?? "";

export const isOff = (loop) => loop.state === "gone";

/** Running or not, acting or not, proved or not. */
export function badges(loop) {
  const states = { running: ["running", "good"], idle: ["idle", ""], gone: ["gone", ""] };
  const mode = loop.is_shadow ? badge("shadow", "info") : badge("active", isOff(loop) ? "" : "good");
  const wish = pendingMode(loop);
  return [badge(...states[loop.state]), mode, wish && badge(`${wish} is wanted`, "warn"), proofBadge(loop)];
}

function proofBadge({ certificate }) {
  if (!certificate) return badge("no certificate");
  return certificate.is_sound ? badge("certificate sound", "good") : badge("certificate not sound", "bad");
}

/** The mode that somebody has chosen and the loop has not taken yet; null if there is none. */
export function pendingMode({ wanted_mode: wanted, is_shadow: isShadow, state }) {
  if (wanted === null || state === "gone") return null;
  return (wanted === "shadow") === isShadow ? null : wanted;
}

export const gainsText = (gains) =>
  Object.entries(gains).map(([name, value]) => h("div", {}, h("code", {}, `${name} = ${gainText(value)}`)));

const gainText = (value) => (Array.isArray(value) ? value.map(digitsOf).join(", ") : digitsOf(value));
// Gains may be small: never show one as 0.
const digitsOf = (value) => (value !== 0 && Math.abs(value) < 0.01 ? value.toPrecision(2) : digits(value));

export function limitsText({ limits: { lowest, highest }, acts }) {
  const show = (value) => withUnit(acts.unit, value);
  if (lowest === null && highest === null) return "none";
  if (lowest === null) return `at most ${show(highest)}`;
  if (highest === null) return `at least ${show(lowest)}`;
  return `${shapeOf(acts.unit)(lowest)} to ${show(highest)}`;
}

const SOUND = "Sound: the loop does not swing, and bears more than is expected.";
const SHAKY = "Not sound: the loop may swing.";
const OF_MODEL = "Proved on a model that was fitted to measurements, at worst within its uncertainty.";
const WITHOUT_MODEL = "Proved for every plant of its kind, without a model.";
const OF_THRESHOLDS = [
  "Thresholds have no margins: what keeps this law from fluttering is the distance between them, ",
  "and the time that it waits.",
].join("");
const UNPROVED = [
  "Nobody has proved that this loop does not swing. It may run in shadow; ",
  "make a certificate with “flyball control design”.",
].join("");

/** The certificate: what is proved, and how far the loop is from swinging. */
export function certificateView({ certificate, law, sample_time_s: sampleTime }) {
  if (!certificate) return h("div.proof", {}, notice(whyNone(law), "info"));
  const isSound = certificate.is_sound;
  const { margins } = certificate;
  const tone = isSound ? "good-text" : "bad-text";
  const lines = [gainWords(margins), delayWords(margins, sampleTime), poleWords(margins)];
  return h(
    "div.proof",
    {},
    h("p.verdict", { class: tone }, icon(isSound ? "check" : "warn"), isSound ? SOUND : SHAKY),
    certificate.reasons.map((reason) => notice(sentence(reason), "warn")),
    h("p", {}, certificate.text),
    h("ul.margins", {}, lines.map(marginLine)),
    h("p.note", {}, certificate.kind === "model" ? OF_MODEL : WITHOUT_MODEL),
  );
}

const marginLine = ([name, value, words]) =>
  h("li", {}, h("b", {}, value), h("span", {}, h("i", {}, name), words));

const whyNone = (law) => (law === "hysteresis" ? OF_THRESHOLDS : UNPROVED);

function gainWords({ gain }) {
  if (gain === null) return ["Gain margin", "any", "However strongly an action works, the loop does not swing."];
  const times = `An action may work ${digits(gain)} times as strongly as believed before the loop swings`;
  return ["Gain margin", `× ${digits(gain)}`, `${times}; at least twice is wanted.`];
}

function delayWords({ delay_samples: delay }, sampleTime) {
  if (delay === null) return ["Delay margin", "any", "However late an action works, the loop does not swing."];
  const time = ms(1000 * delay * sampleTime);
  const later = `${digits(delay)} ${delay === 1 ? "sample" : "samples"} (${time})`;
  return ["Delay margin", time, `An action may work ${later} later than believed before the loop swings.`];
}

function poleWords({ largest_pole: pole }) {
  const grows = "A deviation need not become smaller by itself.";
  if (pole === null || pole >= 1) return ["Largest pole", pole === null ? "∞" : digits(pole), grows];
  return ["Largest pole", digits(pole), `Of a deviation at most ${percent(pole)} is left after a sample.`];
}

/** Measurement against setpoint, and below it what the loop does: two scales, since they have two units. */
export function loopCharts(loop, { height = 140 } = {}) {
  const gap = Math.max(5, 4 * loop.sample_time_s);
  const held = new Chart({
    label: `${loop.title}: measurement and setpoint`,
    series: [
      { key: "measurement", label: "Measurement", color: 1, kind: "area" },
      { key: "setpoint", label: "Setpoint", color: "setpoint", kind: "dashed" },
    ],
    format: shapeOf(loop.measures.unit),
    height,
    gap,
  });
  const done = new Chart({
    label: `${loop.title}: action`,
    series: [{ key: "action", label: "Action", color: 2, kind: "step" }],
    format: shapeOf(loop.acts.unit),
    height: Math.round(height * 0.7),
    gap,
  });
  const element = h(
    "div.loop-charts",
    {},
    h("h3", {}, caption(loop.measures)),
    held.element,
    h("h3", {}, caption(loop.acts)),
    done.element,
  );
  const both = (work) => [held, done].forEach(work);
  return {
    element,
    fill: (samples) => both((chart) => chart.fill(samples)),
    push: (sample) => both((chart) => chart.push(sample.at, sample)),
    destroy: () => both((chart) => chart.destroy()),
  };
}

export const sampleTimeText = (loop) => `every ${ms(1000 * loop.sample_time_s)}`;
export function whereText(loop) {
  if (loop.place === "node") return `in node ${loop.node}`;
  return `in client ${loop.client ?? "unknown"}, reported to ${loop.node} by user ${loop.user}`;
}
