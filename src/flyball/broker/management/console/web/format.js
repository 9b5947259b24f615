// Number formats with units. Unknown values are a dash, never a zero.

export const UNKNOWN = "–";

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenths = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const timeOfDay = new Intl.DateTimeFormat("en", { timeStyle: "medium", hourCycle: "h23" });
const dayAndTime = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "medium", hourCycle: "h23" });

/** 12,345 */
export const count = (value) => (isNumber(value) ? whole.format(value) : UNKNOWN);

/** At most three digits, for axis labels: 0.42, 4.2, 42. */
export function digits(value) {
  if (!isNumber(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 100 || Number.isInteger(value)) return whole.format(value);
  if (size >= 10) return tenths.format(value);
  return String(Number(value.toPrecision(2)));
}

/** 950, 12.3 k, 4.5 M */
export function short(value) {
  if (!isNumber(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1e9) return `${digits(value / 1e9)} G`;
  if (size >= 1e6) return `${digits(value / 1e6)} M`;
  if (size >= 1e4) return `${digits(value / 1e3)} k`;
  return digits(value);
}

/** 1,234 /s */
export function perSecond(value) {
  if (!isNumber(value)) return UNKNOWN;
  return `${value >= 10 || Number.isInteger(value) ? whole.format(value) : tenths.format(value)} /s`;
}

/** 1.2 MB; a kB has 1000 bytes. */
export function bytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (Math.abs(size) >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${digits(size)} ${units[unit]}`;
}

export const bytesPerSecond = (value) => (isNumber(value) ? `${bytes(value)}/s` : UNKNOWN);

/** From microseconds to seconds: 420 µs, 4.2 ms, 1.2 s */
export function ms(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value !== 0 && Math.abs(value) < 1) return `${digits(value * 1000)} µs`;
  if (Math.abs(value) < 1000) return `${digits(value)} ms`;
  return `${digits(value / 1000)} s`;
}

/** 45 s, 3 min 5 s, 2 h 10 min, 4 d 3 h */
export function seconds(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value < 10 && !Number.isInteger(value)) return `${tenths.format(value)} s`;
  const total = Math.round(value);
  const parts = [
    [Math.floor(total / 86400), "d"],
    [Math.floor(total / 3600) % 24, "h"],
    [Math.floor(total / 60) % 60, "min"],
    [total % 60, "s"],
  ];
  const first = parts.findIndex(([amount]) => amount > 0);
  if (first < 0) return "0 s";
  return parts
    .slice(first, first + 2)
    .filter(([amount]) => amount > 0)
    .map(([amount, unit]) => `${amount} ${unit}`)
    .join(" ");
}

/** 42 % */
export function percent(ratio) {
  if (!isNumber(ratio)) return UNKNOWN;
  const value = ratio * 100;
  return `${Math.abs(value) < 10 && !Number.isInteger(value) ? tenths.format(value) : whole.format(value)} %`;
}

export const clock = (at) => (isNumber(at) ? timeOfDay.format(at * 1000) : UNKNOWN);
export const dateTime = (at) => (isNumber(at) ? dayAndTime.format(at * 1000) : UNKNOWN);

/** 12 s ago */
export function ago(at) {
  return isNumber(at) ? `${seconds(Math.max(0, Math.round(Date.now() / 1000 - at)))} ago` : UNKNOWN;
}

export const text = (value) => (value === null || value === undefined || value === "" ? UNKNOWN : String(value));
export const sentence = (words) => words.charAt(0).toUpperCase() + words.slice(1);
export const plural = (amount, word, words = `${word}s`) => `${count(amount)} ${amount === 1 ? word : words}`;
