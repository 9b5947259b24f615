// Time series on a canvas. Keeps a bounded number of points, and draws only while visible.

import { h, setText } from "./dom.js";
import { UNKNOWN, clock, digits } from "./format.js";

const FONT = "11px system-ui, sans-serif";
const GAP_S = 5;
const TOP = 8;
const BOTTOM = 20;
const RIGHT = 6;
const NARROWEST_LABEL = 56;

/** The last `capacity` points of several series, oldest first. */
class Ring {
  constructor(keys, capacity) {
    this.capacity = capacity;
    this.at = new Float64Array(capacity);
    this.values = new Map(keys.map((key) => [key, new Float64Array(capacity)]));
    this.clear();
  }

  clear() {
    this.length = 0;
    this.head = 0;
  }

  push(at, values) {
    this.at[this.head] = at;
    for (const [key, series] of this.values) series[this.head] = Number.isFinite(values[key]) ? values[key] : NaN;
    this.head = (this.head + 1) % this.capacity;
    this.length = Math.min(this.length + 1, this.capacity);
  }

  /** Ring buffer position of point `index`, counted from the oldest. */
  slot(index) {
    return (this.head - this.length + index + this.capacity) % this.capacity;
  }

  timeOf(index) {
    return this.at[this.slot(index)];
  }

  valueOf(key, index) {
    return this.values.get(key)[this.slot(index)];
  }
}

export class Chart {
  constructor({
    label,
    series,
    stacked = false,
    format = digits,
    height = 180,
    seconds = 300,
    points = seconds,
    min = 0,
    max,
    gap = GAP_S,
  }) {
    Object.assign(this, { series, stacked, format, height, seconds, min, max, gap });
    this._ring = new Ring(series.map((one) => one.key), points);
    this._canvas = h("canvas", { "aria-hidden": "true", style: { height: `${height}px` } });
    this._time = h("span.chart-time");
    this._values = new Map();
    const legend = series.map((one) => this._legendEntry(one));
    this.element = h(
      "figure.chart",
      { "aria-label": label, role: "group" },
      h("ul.legend", {}, legend, this._time),
      this._canvas,
    );
    this._hover = null;
    this._isVisible = false;
    this._isPlanned = false;
    this._colors = null;
    this._listen();
  }

  /** Add a point; `at` in unix seconds. A missing value leaves a gap. */
  push(at, values) {
    if (this._ring.length && at <= this._ring.timeOf(this._ring.length - 1)) return;
    this._ring.push(at, values);
    this._changed();
  }

  /** Replace all points: [{at, key: value}]. */
  fill(samples) {
    this._ring.clear();
    for (const sample of samples) this._ring.push(sample.at, sample);
    this._changed();
  }

  destroy() {
    this._seen.disconnect();
    this._sized.disconnect();
    removeEventListener("themechange", this._onTheme);
  }

  _legendEntry(one) {
    const value = h("b", {}, UNKNOWN);
    this._values.set(one.key, value);
    const swatch = h("i.swatch", { class: `${colorClass(one)} ${one.kind ?? "line"}`, "aria-hidden": "true" });
    return h("li", {}, swatch, h("span", {}, one.label), value);
  }

  _listen() {
    this._onTheme = () => {
      this._colors = null;
      this._plan();
    };
    addEventListener("themechange", this._onTheme);
    this._sized = new ResizeObserver(() => this._plan());
    this._sized.observe(this._canvas);
    this._seen = new IntersectionObserver((entries) => {
      this._isVisible = entries[entries.length - 1].isIntersecting;
      this._plan();
    });
    this._seen.observe(this._canvas);
    this._canvas.addEventListener("pointermove", (event) => this._point(event.offsetX));
    this._canvas.addEventListener("pointerleave", () => this._point(null));
  }

  _point(x) {
    this._hover = x;
    this._changed();
  }

  _changed() {
    this._tellValues();
    this._plan();
  }

  _plan() {
    if (this._isPlanned || !this._isVisible) return;
    this._isPlanned = true;
    requestAnimationFrame(() => {
      this._isPlanned = false;
      this._draw();
    });
  }

  _tellValues() {
    const index = this._shownIndex();
    for (const [key, element] of this._values) {
      setText(element, index < 0 ? UNKNOWN : this.format(missing(this._ring.valueOf(key, index))));
    }
    setText(this._time, this._hover !== null && index >= 0 ? clock(this._ring.timeOf(index)) : "");
  }

  /** The point under the pointer, or the newest. */
  _shownIndex() {
    const ring = this._ring;
    if (this._hover === null || !this._scale) return ring.length - 1;
    const wanted = this._scale.timeAt(this._hover);
    let [low, high] = [0, ring.length - 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (ring.timeOf(middle) < wanted) low = middle + 1;
      else high = middle;
    }
    return low > 0 && wanted - ring.timeOf(low - 1) < ring.timeOf(low) - wanted ? low - 1 : low;
  }

  _draw() {
    const width = this._canvas.clientWidth;
    if (!width) return;
    this._colors ??= this._readColors();
    const ratio = devicePixelRatio || 1;
    const [pixelsWide, pixelsHigh] = [Math.round(width * ratio), Math.round(this.height * ratio)];
    if (this._canvas.width !== pixelsWide || this._canvas.height !== pixelsHigh) {
      this._canvas.width = pixelsWide;
      this._canvas.height = pixelsHigh;
    }
    const context = this._canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, this.height);
    context.font = FONT;
    this._scale = this._makeScale(context, width);
    this._drawGrid(context, width);
    if (this.stacked) this._drawStack(context);
    else for (const one of this.series) this._drawSeries(context, one);
    if (this._hover !== null) this._drawCrosshair(context);
  }

  _makeScale(context, width) {
    const ring = this._ring;
    const end = ring.length ? ring.timeOf(ring.length - 1) : Date.now() / 1000;
    const [low, high] = this._extent(end - this.seconds);
    const ticks = niceTicks(low, high);
    const labels = ticks.map((tick) => this.format(tick));
    const left = Math.ceil(Math.max(28, ...labels.map((label) => context.measureText(label).width))) + 8;
    const [bottom, top] = [Math.min(low, ticks[0]), Math.max(high, ticks[ticks.length - 1])];
    const [plotWidth, plotHeight] = [Math.max(1, width - left - RIGHT), this.height - TOP - BOTTOM];
    return {
      left,
      end,
      ticks,
      labels,
      x: (at) => left + (1 - (end - at) / this.seconds) * plotWidth,
      y: (value) => TOP + (1 - (value - bottom) / (top - bottom || 1)) * plotHeight,
      timeAt: (x) => end - (1 - (x - left) / plotWidth) * this.seconds,
    };
  }

  _extent(begin) {
    let [low, high] = [this.min ?? Infinity, this.max ?? -Infinity];
    for (let index = 0; index < this._ring.length; index += 1) {
      if (this._ring.timeOf(index) < begin) continue;
      let sum = 0;
      for (const one of this.series) {
        const value = this._ring.valueOf(one.key, index);
        if (Number.isNaN(value)) continue;
        sum += value;
        const reached = this.stacked ? sum : value;
        if (reached > high) high = reached;
        if (reached < low) low = reached;
      }
    }
    if (!Number.isFinite(low)) low = 0;
    if (!Number.isFinite(high) || high <= low) high = low + 1;
    return [low, high];
  }

  _drawGrid(context, width) {
    const { left, ticks, labels, x, y, end } = this._scale;
    context.lineWidth = 1;
    context.strokeStyle = this._colors.grid;
    context.fillStyle = this._colors.label;
    context.textAlign = "right";
    context.textBaseline = "middle";
    ticks.forEach((tick, number) => {
      const at = Math.round(y(tick)) + 0.5;
      line(context, left, at, width - RIGHT, at);
      context.fillText(labels[number], left - 6, at);
    });
    context.textBaseline = "top";
    let step = this.seconds <= 120 ? 30 : 60;
    while (x(end) - x(end - step) < NARROWEST_LABEL) step *= 2;
    for (let back = 0; back <= this.seconds; back += step) {
      const at = x(end - back);
      context.textAlign = back === 0 ? "right" : at - left < 14 ? "left" : "center";
      context.fillText(
        back === 0 ? "now" : back % 60 === 0 ? `−${back / 60} min` : `−${back} s`,
        at,
        this.height - BOTTOM + 6,
      );
    }
  }

  _drawSeries(context, one) {
    const color = this._colors.series.get(one.key);
    context.save();
    clip(context, this._scale.left, this._canvas.clientWidth, this.height);
    context.strokeStyle = color;
    context.lineWidth = one.kind === "dashed" ? 1.5 : 1.75;
    context.lineJoin = "round";
    if (one.kind === "dashed") context.setLineDash([5, 4]);
    for (const run of this._runs(one.key)) {
      trace(context, run, one.kind === "step");
      context.stroke();
      if (one.kind === "area") shade(context, run, this._scale.y(Math.max(0, this.min ?? 0)), color);
    }
    context.restore();
  }

  /** Yield runs of a series without gaps, in pixels. */
  *_runs(key) {
    const { x, y } = this._scale;
    let run = [];
    let before = -Infinity;
    for (let index = 0; index < this._ring.length; index += 1) {
      const [at, value] = [this._ring.timeOf(index), this._ring.valueOf(key, index)];
      if (Number.isNaN(value) || at - before > this.gap) {
        if (run.length) yield run;
        run = [];
      }
      before = at;
      if (!Number.isNaN(value)) run.push([x(at), y(value)]);
    }
    if (run.length) yield run;
  }

  _drawStack(context) {
    const { x, y } = this._scale;
    context.save();
    clip(context, this._scale.left, this._canvas.clientWidth, this.height);
    let floor = new Float64Array(this._ring.length);
    for (const one of this.series) {
      const ceiling = floor.map((sum, index) => sum + (missing(this._ring.valueOf(one.key, index)) ?? 0));
      context.beginPath();
      ceiling.forEach((sum, index) => context.lineTo(x(this._ring.timeOf(index)), y(sum)));
      for (let index = floor.length - 1; index >= 0; index -= 1) {
        context.lineTo(x(this._ring.timeOf(index)), y(floor[index]));
      }
      context.closePath();
      context.fillStyle = this._colors.series.get(one.key);
      context.globalAlpha = 0.8;
      context.fill();
      floor = ceiling;
    }
    context.restore();
  }

  _drawCrosshair(context) {
    const index = this._shownIndex();
    if (index < 0) return;
    const x = Math.round(this._scale.x(this._ring.timeOf(index))) + 0.5;
    context.strokeStyle = this._colors.label;
    context.lineWidth = 1;
    line(context, x, TOP, x, this.height - BOTTOM);
    if (this.stacked) return;
    for (const one of this.series) {
      const value = this._ring.valueOf(one.key, index);
      if (Number.isNaN(value)) continue;
      context.beginPath();
      context.arc(x, this._scale.y(value), 3, 0, 2 * Math.PI);
      context.fillStyle = this._colors.series.get(one.key);
      context.fill();
    }
  }

  _readColors() {
    const probe = h("i", { hidden: true });
    this.element.append(probe);
    const read = (name) => {
      probe.className = name;
      return getComputedStyle(probe).color;
    };
    const series = new Map(this.series.map((one) => [one.key, read(colorClass(one))]));
    const colors = { series, grid: read("grid-color"), label: read("label-color") };
    probe.remove();
    return colors;
  }
}

const colorClass = (one) => `series-${one.color ?? 1}`;
const missing = (value) => (Number.isNaN(value) ? null : value);

function line(context, x1, y1, x2, y2) {
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x2, y2);
  context.stroke();
}

function clip(context, left, width, height) {
  context.beginPath();
  context.rect(left, 0, width - left - RIGHT + 1, height - BOTTOM + 1);
  context.clip();
}

function trace(context, run, isStep) {
  context.beginPath();
  // A single point is invisible as a line.
  if (run.length === 1) context.moveTo(run[0][0] - 2, run[0][1]);
  run.forEach(([x, y], index) => {
    if (isStep && index) context.lineTo(x, run[index - 1][1]);
    context.lineTo(x, y);
  });
}

function shade(context, run, base, color) {
  context.lineTo(run[run.length - 1][0], base);
  context.lineTo(run[0][0], base);
  context.closePath();
  context.globalAlpha = 0.12;
  context.fillStyle = color;
  context.fill();
  context.globalAlpha = 1;
}

/** Three to five round numbers from below `low` to above `high`. */
export function niceTicks(low, high) {
  const rough = (high - low) / 3;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step - 1e-9);
  return Array.from({ length: last - first + 1 }, (_, index) => Number(((first + index) * step).toPrecision(12)));
}
