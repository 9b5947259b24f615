// A table with sorting, filtering and paging, on the server or client. Renders visible changes only.

import { Problem, get, isDown, isLoggedOut } from "./api.js";
import { every, fill, h, icon, setText } from "./dom.js";
import { filterField } from "./fields.js";
import { UNKNOWN, count, plural } from "./format.js";
import { empty, loading, problemBox } from "./ui.js";

const TYPING_MS = 50;
const PAGE_SIZE = 50;

export class Table {
  constructor(options) {
    Object.assign(
      this,
      { sort: null, isDescending: false, pageSize: PAGE_SIZE, refreshMs: 5000, filterLabel: null },
      options,
    );
    this.noun ??= this.label.toLowerCase().replace(/s$/, "");
    this._query = {
      filter: "",
      isRegex: false,
      sort: this.sort,
      isDescending: this.isDescending,
      page: 1,
      pageSize: this.pageSize,
    };
    this._rows = new Map();
    this._turn = 0;
    this.element = this._build();
    // Without an interval the page triggers reloads: it has the rows.
    this._stop = this.refreshMs ? every(this.refreshMs, () => this.reload()) : () => {};
  }

  destroy() {
    this._stop();
    clearTimeout(this._typing);
    this._turn = -1;
  }

  /** Reload the rows. A response to an outdated query is dropped. */
  async reload() {
    if (this._turn < 0) return;
    const turn = (this._turn += 1);
    try {
      const found = await this.load({ ...this._query });
      if (turn === this._turn) this._show(found);
    } catch (error) {
      if (turn === this._turn && !isLoggedOut(error)) this._fail(error);
    }
  }

  _build() {
    this._status = h("p.table-status", { role: "status" });
    this._head = h("tr", { role: "row" }, this.columns.map((column) => this._heading(column)));
    this._body = h("tbody", { role: "rowgroup" });
    this._grid = h(
      "table",
      { role: "table", "aria-label": this.label },
      h("thead", { role: "rowgroup" }, this._head),
      this._body,
    );
    this._below = h("div.table-below", {}, loading());
    this._pager = this._makePager();
    return h("div.table", {}, this._toolbar(), h("div.table-frame", {}, this._grid, this._below), this._pager);
  }

  _toolbar() {
    const filter = this.filterLabel && this._filterField();
    return h("div.toolbar", { class: filter ? "" : "bare" }, filter, this._sortField(), this._status);
  }

  _filterField() {
    const typed = () => {
      clearTimeout(this._typing);
      this._typing = setTimeout(() => this._ask({ filter: this._filter.value.trim(), page: 1 }), TYPING_MS);
    };
    const regex = h(
      "input",
      { type: "checkbox", onchange: (event) => this._ask({ isRegex: event.target.checked, page: 1 }) },
    );
    const { input, element } = filterField(
      this.filterLabel,
      typed,
      h("kbd", { title: "Press / to focus", "aria-hidden": "true" }, "/"),
      h("label.regex", { title: "Treat the filter as a regular expression" }, regex, "Regex"),
    );
    this._filter = input;
    return element;
  }

  // On phones rows are cards, without headings to click.
  _sortField() {
    const sortable = this.columns.filter((column) => column.sort !== false);
    const chosen = (event) => {
      const [sort, direction] = event.target.value.split(" ");
      this._ask({ sort, isDescending: direction === "down", page: 1 });
    };
    this._sorter = h(
      "select.sorter",
      { "aria-label": `Sort ${this.label}`, onchange: chosen },
      sortable.map((column) => [
        h("option", { value: `${sortKey(column)} up` }, `${column.label} ↑`),
        h("option", { value: `${sortKey(column)} down` }, `${column.label} ↓`),
      ]),
    );
    return this._sorter;
  }

  _heading(column) {
    const frame = { scope: "col", role: "columnheader", class: column.numeric ? "number" : "" };
    if (column.sort === false) return h("th", { ...frame, title: column.title }, column.label);
    const press = () => {
      const isSame = this._query.sort === sortKey(column);
      // Numbers sort descending first, names ascending.
      this._ask({
        sort: sortKey(column),
        isDescending: isSame ? !this._query.isDescending : Boolean(column.numeric),
        page: 1,
      });
    };
    const button = h("button.sort", { type: "button", onclick: press, title: column.title }, column.label);
    return h("th", { ...frame, dataset: { sort: sortKey(column) } }, button);
  }

  _ask(change) {
    Object.assign(this._query, change);
    this.reload();
  }

  _show({ items, total, filtered, page, pages }) {
    this._query.page = page;
    this._showOrder();
    this._showRows(items);
    const all = plural(total, this.noun);
    setText(this._status, filtered === total ? all : `${count(filtered)} of ${all}`);
    if (items.length) fill(this._below);
    else fill(this._below, this._query.filter ? this._noMatch() : this.empty());
    this._grid.classList.toggle("has-rows", items.length > 0);
    this._showPager(page, pages);
  }

  _fail(error) {
    // The banner shows that the node is down; stale rows are better than none.
    if (isDown(error) && this._rows.size) return;
    this._showRows([]);
    this._grid.classList.remove("has-rows");
    setText(this._status, "");
    fill(this._below, problemBox(error));
  }

  _noMatch() {
    const clear = () => {
      this._filter.value = "";
      this._ask({ filter: "", page: 1 });
      this._filter.focus();
    };
    const button = h("button", { type: "button", onclick: clear }, "Clear the filter");
    return empty(`Nothing matches “${this._query.filter}”`, null, button);
  }

  _showOrder() {
    for (const heading of this._head.children) {
      if (!heading.dataset.sort) continue;
      const isSorted = heading.dataset.sort === this._query.sort;
      if (isSorted) heading.setAttribute("aria-sort", this._query.isDescending ? "descending" : "ascending");
      else heading.removeAttribute("aria-sort");
    }
    if (this._query.sort) this._sorter.value = `${this._query.sort} ${this._query.isDescending ? "down" : "up"}`;
  }

  _showRows(items) {
    const wanted = new Set(items.map(this.key));
    // Reuse row elements: on another page most cells are the same.
    const spare = [...this._rows].filter(([key]) => !wanted.has(key)).map(([, row]) => row);
    const rows = new Map();
    for (const item of items) {
      const key = this.key(item);
      const row = this._rows.get(key) ?? spare.pop() ?? this._makeRow();
      this._update(row, item);
      rows.set(key, row);
    }
    for (const row of spare) row.element.remove();
    this._rows = rows;
    let place = this._body.firstChild;
    for (const row of rows.values()) {
      if (row.element === place) place = place.nextSibling;
      else this._body.insertBefore(row.element, place);
    }
  }

  _makeRow() {
    const cell = (column, index) =>
      h(
        index ? "td" : "th",
        {
          scope: index ? null : "row",
          role: index ? "cell" : "rowheader",
          class: [column.numeric && "number", column.isWide && "wide"].filter(Boolean).join(" "),
          dataset: { label: column.label },
        },
      );
    const cells = this.columns.map(cell);
    return { element: h("tr", { role: "row" }, cells), cells, values: [] };
  }

  _update(row, item) {
    this.columns.forEach((column, index) => {
      const value = valueOf(column, item);
      if (row.values.length > index && row.values[index] === value) return;
      row.values[index] = value;
      fill(row.cells[index], column.render ? column.render(item) : String(value ?? UNKNOWN));
    });
  }

  _makePager() {
    const turn = (by) => () => this._ask({ page: this._query.page + by });
    this._previous = h("button", { type: "button", onclick: turn(-1) }, icon("left"), "Previous");
    this._next = h("button", { type: "button", onclick: turn(1) }, "Next", icon("right"));
    this._where = h("span");
    const label = `Pages of ${this.label}`;
    return h("nav.pager", { "aria-label": label, hidden: true }, this._previous, this._where, this._next);
  }

  _showPager(page, pages) {
    this._pager.hidden = pages <= 1;
    this._previous.disabled = page <= 1;
    this._next.disabled = page >= pages;
    setText(this._where, `Page ${count(page)} of ${count(pages)}`);
  }
}

const sortKey = (column) => column.sort ?? column.key;
const valueOf = (column, item) => (column.value ? column.value(item) : item[column.key]);
// Displayed values have units and would sort wrongly.
const orderOf = (column, item) => item[column.key] ?? valueOf(column, item);

/** Filter, sort and page on the server, with RabbitMQ's list parameters. */
export function serverList(where, extra = {}) {
  return async ({ filter, isRegex, sort, isDescending, page, pageSize }) => {
    const order = { sort, sort_reverse: isDescending };
    const wanted = { ...extra, ...order, page_size: pageSize, name: filter, use_regex: isRegex };
    const ask = (number) => get(`${where}?${new URLSearchParams({ ...wanted, page: number })}`);
    // The last page may have disappeared meanwhile.
    const isTooFar = (error) => error instanceof Problem && error.status === 400 && page > 1;
    const found = await ask(page).catch((error) => (isTooFar(error) ? ask(1) : Promise.reject(error)));
    const { items, total_count: total, filtered_count: filtered } = found;
    return { items, total, filtered, page: found.page, pages: found.page_count };
  };
}

/** Filter, sort and page on the client: `rows` is a list or returns one. `columns` define sort keys. */
export function local(rows, { text, columns }) {
  return async ({ filter, isRegex, sort, isDescending, page, pageSize }) => {
    const all = typeof rows === "function" ? await rows() : rows;
    const matches = matcher(filter, isRegex);
    const found = filter ? all.filter((row) => matches(text(row))) : [...all];
    const column = columns.find((one) => sortKey(one) === sort);
    const direction = isDescending ? -1 : 1;
    if (column) found.sort((one, other) => direction * compare(orderOf(column, one), orderOf(column, other)));
    const pages = Math.max(1, Math.ceil(found.length / pageSize));
    const shown = Math.min(page, pages);
    const items = found.slice((shown - 1) * pageSize, shown * pageSize);
    return { items, total: all.length, filtered: found.length, page: shown, pages };
  };
}

function matcher(filter, isRegex) {
  if (isRegex) {
    try {
      const pattern = new RegExp(filter, "i");
      return (text) => pattern.test(text);
    } catch {
      // An incomplete pattern is treated as plain text.
    }
  }
  const wanted = filter.toLowerCase();
  return (text) => text.toLowerCase().includes(wanted);
}

const collator = new Intl.Collator("en", { numeric: true });

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  return collator.compare(String(one ?? ""), String(other ?? ""));
}
