// Routing diagram: exchanges on the left, queues on the right, bindings between them.

import { toExchange, toQueue } from "./addresses.js";
import { fill, h, svg } from "./dom.js";
import { plural } from "./format.js";
import { loading, notice, problemBox } from "./ui.js";

const BOX_HEIGHT = 44;
const ROW_HEIGHT = 60;
const WIDEST_BOX = 220;
const NARROWEST_BOX = 96;
const WIDEST_GAP = 320;
const NARROWEST_GAP = 40;
const NARROWEST_KEY = 70;
const LETTER_WIDTH = 7.2;
const KIND_LETTER_WIDTH = 6.2;
const KEY_LETTER_WIDTH = 6.7;
const MOST_ARROWS = 60;

/** Draws bindings ({source, destination, destination_type, routing_key, arguments}) and exchanges without any. */
export class RoutingPicture {
  constructor({ empty = () => null } = {}) {
    this._empty = empty;
    this._drawing = svg("svg", { role: "group", "aria-label": "Routing diagram" });
    this._remark = h("div.slot", {}, loading());
    this._frame = h("div.routing", { hidden: true }, this._drawing);
    this.element = h("div", {}, this._remark, this._frame);
    this._graph = graphOf([]);
    this._shown = "";
    this._sized = new ResizeObserver(() => this._draw());
    this._sized.observe(this._frame);
    this.fail = (error) => fill(this._remark, problemBox(error));
  }

  /** Show bindings of a vhost; `types` maps exchange names to types, `alone` lists exchanges that are always shown.
   *
   * Unchanged diagrams are not redrawn: a link may have the focus.
   */
  show(bindings, { vhost, types = {}, alone = [] }) {
    fill(this._remark, this._remarkOn(bindings.length));
    const drawn = bindings.slice(0, MOST_ARROWS);
    const wanted = JSON.stringify([vhost, drawn, types, alone]);
    if (wanted === this._shown) return;
    this._shown = wanted;
    this._graph = graphOf(drawn, alone);
    this._frame.hidden = !this._graph.columns.length;
    this._vhost = vhost;
    this._types = types;
    this._draw();
  }

  _remarkOn(amount) {
    if (!amount) return this._empty();
    const text = `${plural(amount, "binding")} are too many for one diagram: showing the first ${MOST_ARROWS}.`;
    return amount > MOST_ARROWS && notice(text);
  }

  destroy() {
    this._sized.disconnect();
  }

  _draw() {
    const available = this._frame.clientWidth;
    if (!available) return;
    const { columns, arrows } = this._graph;
    const size = sizes(available, columns.length);
    const places = new Map();
    columns.forEach((column, number) => {
      column.forEach((node, row) => places.set(node, { x: number * (size.box + size.gap), y: 8 + row * ROW_HEIGHT }));
    });
    const height = Math.max(1, ...columns.map((column) => column.length)) * ROW_HEIGHT;
    this._drawing.setAttribute("viewBox", `0 0 ${size.width} ${height}`);
    this._drawing.style.setProperty("min-width", `${size.width}px`);
    this._drawing.style.setProperty("max-width", `${size.width}px`);
    fill(
      this._drawing,
      arrowHead(),
      arrows.map((arrow) => drawArrow(arrow, places, size)),
      arrows.map((arrow) => drawKeys(arrow, places, size)),
      columns.flat().filter((node) => !node.isBend).map((node) => this._drawNode(node, places.get(node), size)),
    );
  }

  _drawNode({ name, isQueue }, { x, y }, { box }) {
    const to = isQueue ? toQueue : toExchange;
    const kind = isQueue ? "queue" : `${this._types[name] ?? ""} exchange`.trim();
    const shown = name || "(default)";
    return svg(
      "a",
      { href: to({ vhost: this._vhost, name }), class: isQueue ? "queue" : "exchange" },
      svg("title", {}, `${isQueue ? "Queue" : "Exchange"} ${shown}`),
      svg("rect", { x: x + 1, y, width: box - 2, height: BOX_HEIGHT, rx: isQueue ? 6 : BOX_HEIGHT / 2 }),
      svg("text", { x: x + 16, y: y + 19 }, shortened(shown, (box - 28) / LETTER_WIDTH)),
      svg("text.kind", { x: x + 16, y: y + 35 }, shortened(kind, (box - 24) / KIND_LETTER_WIDTH)),
    );
  }
}

/** Lay out boxes in columns, with one arrow per pair, carrying all its keys and waypoints. */
export function graphOf(bindings, alone = []) {
  const nodes = new Map();
  const add = (name, isQueue) => {
    const id = `${isQueue ? "queue" : "exchange"} ${name}`;
    if (!nodes.has(id)) nodes.set(id, { id, name, isQueue, column: 0, place: nodes.size });
    return nodes.get(id);
  };
  const arrows = new Map();
  for (const binding of bindings) {
    const stops = [add(binding.source, false), add(binding.destination, binding.destination_type === "queue")];
    const id = `${stops[0].id} > ${stops[1].id}`;
    if (!arrows.has(id)) arrows.set(id, { stops, keys: [] });
    arrows.get(id).keys.push(keyOf(binding));
  }
  for (const name of alone) add(name, false);
  const kept = [...arrows.values()];
  return { columns: inColumns([...nodes.values()], kept), arrows: kept };
}

function keyOf({ routing_key: key, arguments: settings }) {
  const wanted = Object.entries(settings ?? {}).map(([name, value]) => `${name}=${value}`);
  return [key, ...wanted].filter(Boolean).join(" ");
}

function inColumns(nodes, arrows) {
  chooseColumns(nodes, arrows);
  const columns = [];
  for (const node of [...nodes, ...arrows.flatMap(bend)]) (columns[node.column] ??= []).push(node);
  for (const column of columns.slice(1)) sortByNeighbours(column, arrows, columns);
  return columns;
}

/** An exchange is right of its sources, a queue right of all exchanges. */
function chooseColumns(nodes, arrows) {
  const exchanges = nodes.filter((node) => !node.isQueue);
  const reached = new Set();
  const push = (node, way) => {
    reached.add(node);
    for (const { stops: [from, to] } of arrows) {
      // Bindings may form a cycle.
      if (from !== node || to.isQueue || way.includes(to) || to.column > node.column) continue;
      to.column = node.column + 1;
      push(to, [...way, to]);
    }
  };
  const isLed = new Set(arrows.map((arrow) => arrow.stops[1]));
  const begins = [...exchanges.filter((node) => !isLed.has(node)), ...exchanges];
  for (const node of begins) if (!reached.has(node)) push(node, [node]);
  closeGaps(exchanges);
  const last = Math.max(-1, ...exchanges.map((node) => node.column)) + 1;
  for (const node of nodes) if (node.isQueue) node.column = last;
}

// A cycle may have emptied a column.
function closeGaps(exchanges) {
  const used = [...new Set(exchanges.map((node) => node.column))].sort((one, other) => one - other);
  for (const node of exchanges) node.column = used.indexOf(node.column);
}

/** Reserve a slot for a long arrow in each column that it crosses. Returns the slots. */
function bend(arrow) {
  const [from, to] = arrow.stops;
  const bends = [];
  for (let column = from.column + 1; column < to.column; column += 1) {
    bends.push({ isBend: true, column, place: to.place });
  }
  arrow.stops = [from, ...bends, to];
  return bends;
}

/** Order boxes by their sources, to reduce crossings. */
function sortByNeighbours(column, arrows, columns) {
  const rows = new Map(columns.flatMap((one) => one.map((node, row) => [node, row])));
  const steps = arrows.flatMap(({ stops }) => stops.slice(1).map((stop, index) => [stops[index], stop]));
  const middle = new Map();
  for (const node of column) {
    const sources = steps.filter(([, to]) => to === node).map(([from]) => rows.get(from));
    middle.set(node, sources.length ? sources.reduce((sum, row) => sum + row, 0) / sources.length : Infinity);
  }
  const isLevel = (one, other) => middle.get(one) === middle.get(other);
  column.sort((one, other) => (isLevel(one, other) ? one.place - other.place : middle.get(one) - middle.get(other)));
}

function sizes(available, columnCount) {
  const width = Math.max(available, columnCount * NARROWEST_BOX + (columnCount - 1) * NARROWEST_GAP);
  if (columnCount < 2) return { width, box: Math.min(WIDEST_BOX, width), gap: 0 };
  const box = Math.max(NARROWEST_BOX, Math.min(WIDEST_BOX, Math.floor(width / (columnCount * 1.6))));
  return { width, box, gap: Math.min(WIDEST_GAP, (width - columnCount * box) / (columnCount - 1)) };
}

/** The endpoints of an arrow. */
function ends(from, to, places, { box }) {
  const [start, end] = [places.get(from), places.get(to)];
  const x2 = to.isBend ? end.x : end.x - 3;
  return { x1: start.x + box - 1, y1: start.y + BOX_HEIGHT / 2, x2, y2: end.y + BOX_HEIGHT / 2 };
}

function drawArrow({ stops }, places, size) {
  const parts = stops.slice(1).map((stop, index) => {
    const { x1, y1, x2, y2 } = ends(stops[index], stop, places, size);
    const reach = Math.max(30, Math.abs(x2 - x1) / 2);
    return `${index ? "L" : "M"}${x1} ${y1}C${x1 + reach} ${y1} ${x2 - reach} ${y2} ${x2} ${y2}`;
  });
  return svg("path", { d: parts.join(""), "marker-end": "url(#arrow)" });
}

function drawKeys({ stops, keys: all }, places, size) {
  const keys = all.filter(Boolean);
  if (!keys.length || size.gap < NARROWEST_KEY) return null;
  // Near its end an arrow does not overlap others.
  const { x1, y1, x2, y2 } = ends(stops[stops.length - 2], stops[stops.length - 1], places, size);
  const label = keys.length > 2 ? `${keys.slice(0, 2).join(", ")} +${keys.length - 2}` : keys.join(", ");
  return svg(
    "text.key",
    { x: (x1 + x2) / 2, y: (y1 + y2) / 2 + 4, "text-anchor": "middle" },
    svg("title", {}, keys.join(", ")),
    shortened(label, (size.gap - 30) / KEY_LETTER_WIDTH),
  );
}

function arrowHead() {
  const tip = { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" };
  return svg("defs", {}, svg("marker", tip, svg("path", { d: "M0 0l8 4-8 4z" })));
}

function shortened(text, room) {
  return text.length <= room ? text : `${text.slice(0, Math.max(1, Math.floor(room) - 1))}…`;
}
