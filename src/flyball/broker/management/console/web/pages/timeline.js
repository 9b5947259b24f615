// The decision log of the domain's manager, newest first, with reasons.

import { fill, h } from "../dom.js";
import { ago, clock, dateTime } from "../format.js";
import { badge, empty, loading, problemBox, switcher } from "../ui.js";

const KEPT = 500;
const PAGE = 20;

const KINDS = {
  Lead: ["leads", "info"],
  Provision: ["start a node", "good"],
  AddMember: ["add a member", "good"],
  Mark: ["mark", "warn"],
  Unmark: ["unmark", "good"],
  RemoveMember: ["remove a member", "warn"],
  Release: ["stop a node", "warn"],
  Move: ["move", "info"],
  MoveQueue: ["move a queue", "info"],
  TakeOver: ["take over", "warn"],
  HandOver: ["cannot help", "warn"],
  Model: ["model", "info"],
  Failure: ["failed", "bad"],
};
const GROUPS = {
  all: () => true,
  moves: ({ kind }) => ["Move", "MoveQueue"].includes(kind),
  members: ({ kind }) => ["Provision", "AddMember", "Mark", "Unmark", "RemoveMember", "Release"].includes(kind),
  models: ({ kind }) => kind === "Model",
  rest: ({ kind }) => ["Lead", "TakeOver", "HandOver", "Failure"].includes(kind),
};
const CHOICES = [
  ["all", "All"],
  ["members", "Scaling"],
  ["moves", "Moves"],
  ["models", "Models"],
  ["rest", "Leader and failures"],
];

export class Timeline {
  constructor() {
    this.term = "";
    this.last = 0;
    this._decisions = [];
    this._group = "all";
    this._limit = PAGE;
    this._list = h("ol.timeline", { "aria-label": "Decisions" });
    this._below = h("div", {}, loading());
    const more = h("button", { type: "button", onclick: () => this._showMore() }, "Show more");
    this._pager = h("div.pager", { hidden: true }, more);
    const choose = (group) => {
      this._group = group;
      this._limit = PAGE;
      this._draw();
    };
    this.element = h(
      "div.table",
      {},
      h("div", {}, switcher("Which decisions", CHOICES, this._group, choose)),
      this._list,
      this._below,
      this._pager,
    );
  }

  /** Add a response: the decisions since the last one, or all of a new leader. */
  take({ term: wanted, last, decisions }) {
    const term = wanted ?? "";
    const isNew = term !== this.term;
    if (!isNew && !decisions.length && this._isDrawn) return;
    const before = isNew ? [] : this._decisions;
    Object.assign(this, { term, last });
    this._decisions = [...before, ...decisions].slice(-KEPT);
    this._draw();
  }

  fail(error) {
    if (!this._decisions.length) fill(this._below, problemBox(error));
  }

  _showMore() {
    this._limit += PAGE;
    this._draw();
  }

  _draw() {
    this._isDrawn = true;
    const found = this._decisions.filter(GROUPS[this._group]).reverse();
    fill(this._list, found.slice(0, this._limit).map(entry));
    this._pager.hidden = found.length <= this._limit;
    fill(this._below, found.length ? null : this._nothing());
  }

  _nothing() {
    if (this._decisions.length) return empty("No decisions of this kind", "Choose another kind above.");
    return empty(
      "No decisions yet",
      "The manager acts when load, nodes or clients change; its reasons are shown here.",
    );
  }
}

function entry({ at, kind, what, reason, cluster }) {
  const [word, tone] = KINDS[kind] ?? [kind, ""];
  const isElsewhere = cluster && cluster.vhost !== "/";
  return h(
    "li",
    { class: tone },
    h("time", { title: `${dateTime(at)}, ${ago(at)}`, datetime: new Date(at * 1000).toISOString() }, clock(at)),
    h(
      "div",
      {},
      h(
        "p",
        {},
        badge(word, tone),
        " ",
        h("b", {}, what),
        isElsewhere && h("span.note", {}, ` in vhost “${cluster.vhost}”`),
      ),
      reason && h("p.why", {}, h("span", {}, "because "), reason),
    ),
  );
}
