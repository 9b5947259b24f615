// A filterable list of cards; only the first ones are shown until more are requested.

import { fill, h, setText } from "./dom.js";
import { filterField } from "./fields.js";
import { count, plural } from "./format.js";
import { empty } from "./ui.js";

const FILTERED_FROM = 4;

/** Shows items as cards, each kept while its item exists.
 *
 * Options: `label` and `noun` name the items, `key(item)` identifies one, the filter matches `text(item)`,
 * `make(item)` returns {element, update(item), destroy()}, `empty()` the empty state.
 */
export class Gallery {
  constructor({ label, pageSize = 12, ...options }) {
    Object.assign(this, { pageSize, ...options });
    this._items = [];
    this._keys = new Set();
    this._limit = pageSize;
    this._cards = new Map();
    this._grid = h("div.grid.gallery", { role: "list", "aria-label": label });
    this._below = h("div");
    this._status = h("p.table-status", { role: "status" });
    const more = h("button", { type: "button", onclick: () => this._showMore() }, "Show more");
    this._pager = h("div.pager", { hidden: true }, more);
    this._filter = filterField(`Filter ${label.toLowerCase()} by name`, () => this._draw());
    this._tools = h("div.toolbar", {}, this._filter.element, this._status);
    this.element = h("div.table", {}, this._tools, this._grid, this._pager, this._below);
  }

  /** The visible card of an item. */
  card(key) {
    return this._cards.get(key);
  }

  has(key) {
    return this._keys.has(key);
  }

  show(items) {
    // A response may arrive after its page was left: charts created then would leak.
    if (this._isOver) return;
    this._items = items;
    this._keys = new Set(items.map(this.key));
    this._draw();
  }

  destroy() {
    this._isOver = true;
    for (const card of this._cards.values()) card.destroy();
    this._cards.clear();
  }

  _showMore() {
    this._limit += this.pageSize;
    this._draw();
  }

  _draw() {
    const wanted = this._filter.input.value.trim().toLowerCase();
    const found = this._items.filter((item) => this.text(item).toLowerCase().includes(wanted));
    const shown = found.slice(0, this._limit);
    this._showCards(shown);
    this._grid.hidden = !shown.length;
    this._tools.hidden = this._items.length < FILTERED_FROM;
    this._pager.hidden = found.length === shown.length;
    const all = plural(this._items.length, this.noun);
    setText(this._status, found.length === this._items.length ? all : `${count(found.length)} of ${all}`);
    fill(this._below, found.length ? null : this._nothing(wanted));
  }

  _nothing(wanted) {
    return wanted ? empty(`Nothing matches “${wanted}”`) : this.empty();
  }

  _showCards(items) {
    const cards = new Map(items.map((item) => [this.key(item), this._cards.get(this.key(item)) ?? this.make(item)]));
    for (const [key, card] of this._cards) {
      if (cards.has(key)) continue;
      card.destroy();
      card.element.remove();
    }
    this._cards = cards;
    let place = this._grid.firstChild;
    for (const item of items) {
      const card = cards.get(this.key(item));
      card.update(item);
      card.element.setAttribute("role", "listitem");
      if (card.element === place) place = place.nextSibling;
      else this._grid.insertBefore(card.element, place);
    }
  }
}
