// Display of one control loop: texts and charts.

import { Chart } from "../chart.js";
import { h, icon } from "../dom.js";
import { bytes, bytesPerSecond, digits, ms, percent, sentence, short } from "../format.js";
import { badge, notice } from "../ui.js";

const LAWS = {
  p: ["Proportional (P)", "The action is proportional to the deviation from the setpoint."],
  i: ["Integral (I)", "The action changes for as long as there is a deviation."],
  pi: ["Proportional and integral (PI)", "Reacts to the deviation at once, and removes it over time."],
  pid: ["PID", "Reacts to the deviation, its integral and its derivative."],
  positional_pid: ["PID, positional", "Reacts to the deviation, its integral and its derivative."],
  multiplicative: ["Multiplicative", "Multiplies the action by a power of setpoint over measurement."],
  scheduled: ["Scheduled gain", "Uses a gain for each operating point on the plant's curve."],
  self_tuning: ["Self-tuning", "Estimates the plant's gain while running, and adapts its own."],
  hysteresis: ["Thresholds", "Adds above one threshold and removes below another one (hysteresis)."],
};
const SHAPES = { bytes, "bytes/s": bytesPerSecond, "of their capacity": percent };

/** Number format of a unit; the unit is shown separately unless the number includes it. */
export const shapeOf = (unit) => SHAPES[unit] ?? short;
const withUnit = (unit, value) => (SHAPES[unit] ? shapeOf(unit)(value) : `${short(value)} ${unit}`);
export const caption = ({ what, unit }) => (SHAPES[unit] ? sentence(what) : `${sentence(what)}, ${unit}`);

export const lawName = (law) => LAWS[law]?.[0] ?? law;
export const lawText = (law) => LAWS[law]?.[1] ?? "";

export const isOff = (loop) => loop.state === "gone";

/** Badges for state, mode and certificate. */
export function badges(loop) {
  const states = { running: ["running", "good"], idle: ["idle", ""], gone: ["gone", ""] };
  const mode = loop.is_shadow ? badge("shadow", "info") : badge("active", isOff(loop) ? "" : "good");
  const wish = pendingMode(loop);
  return [badge(...states[loop.state]), mode, wish && badge(`${wish} is wanted`, "warn"), proofBadge(loop)];
}

function proofBadge({ certificate }) {
  if (!certificate) return badge("no certificate");
  if (certificate.is_sound) return badge("certified stable", "good");
  return badge(certificate.is_forced ? "not stable, forced" : "not stable", "bad");
}

/** The requested mode, until the loop has switched; null if there is none. */
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

const SOUND = "Stable, with sufficient margins.";
const SHAKY = "Not proven stable: the loop may oscillate.";
const FORCED = "Not proven stable, and forced: the loop acts although it may oscillate.";
const OF_MODEL = "Proven for all plants in the confidence set of the identified model.";
const WITHOUT_MODEL = "Proven for every plant of its kind, without a model.";
const OF_THRESHOLDS = [
  "Thresholds have no margins: the distance between them and the dwell time ",
  "prevent oscillation.",
].join("");
const UNPROVED = [
  "This loop has no proof of stability. It may run in shadow mode; ",
  "create a certificate with “flyball control design”.",
].join("");

/** The certificate and its margins. */
export function certificateView({ certificate, law, sample_time_s: sampleTime }) {
  if (!certificate) return h("div.proof", {}, notice(whyNone(law), "info"));
  const isSound = certificate.is_sound;
  const { margins } = certificate;
  const tone = isSound ? "good-text" : "bad-text";
  const lines = [gainWords(margins), delayWords(margins, sampleTime), poleWords(margins)];
  return h(
    "div.proof",
    {},
    h("p.verdict", { class: tone }, icon(isSound ? "check" : "warn"), isSound ? SOUND : certificate.is_forced ? FORCED : SHAKY),
    certificate.reasons.map((reason) => notice(sentence(reason), "warn")),
    (certificate.warnings ?? []).map((warning) => notice(sentence(warning), "info")),
    h("p", {}, certificate.text),
    h("ul.margins", {}, lines.map(marginLine)),
    h("p.note", {}, certificate.kind === "model" ? OF_MODEL : WITHOUT_MODEL),
  );
}

const marginLine = ([name, value, words]) =>
  h("li", {}, h("b", {}, value), h("span", {}, h("i", {}, name), words));

const whyNone = (law) => (law === "hysteresis" ? OF_THRESHOLDS : UNPROVED);

function gainWords({ gain }) {
  if (gain === null) return ["Gain margin", "any", "Stable for any plant gain."];
  const times = `The plant's gain may be ${digits(gain)} times the estimate before the loop oscillates`;
  return ["Gain margin", `× ${digits(gain)}`, `${times}; at least 2 is required.`];
}

function delayWords({ delay_samples: delay }, sampleTime) {
  if (delay === null) return ["Delay margin", "any", "Stable for any delay."];
  const time = ms(1000 * delay * sampleTime);
  const later = `${digits(delay)} ${delay === 1 ? "sample" : "samples"} (${time})`;
  return ["Delay margin", time, `The delay may be ${later} longer than estimated before the loop oscillates.`];
}

function poleWords({ largest_pole: pole }) {
  const grows = "A deviation need not decay.";
  if (pole === null || pole >= 1) return ["Largest pole", pole === null ? "∞" : digits(pole), grows];
  return ["Largest pole", digits(pole), `At most ${percent(pole)} of a deviation remains after a sample.`];
}

/** Measurement and setpoint, and the action in a second chart, as it has another unit. */
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
