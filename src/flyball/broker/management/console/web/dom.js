// Creates elements. Text is never parsed as HTML: names come from clients.

const SVG = "http://www.w3.org/2000/svg";

/** Create an element: h("button.primary", {onclick}, "Text"). Children that are null or false are skipped. */
export function h(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  return furnish(document.createElement(tag), classes, attributes, children);
}

/** Create an SVG element. */
export function svg(name, attributes, ...children) {
  const [tag, ...classes] = name.split(".");
  return furnish(document.createElementNS(SVG, tag), classes, attributes, children);
}

function furnish(element, classes, attributes, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.classList.add(...value.split(" ").filter(Boolean));
    else if (key === "dataset") Object.assign(element.dataset, value);
    // The content security policy forbids style attributes, but not this.
    else if (key === "style") for (const [name, text] of Object.entries(value)) element.style.setProperty(name, text);
    else if (key === "value") element.value = value;
    else element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...nodes(children));
  return element;
}

function nodes(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** Set the text if it differs: an unchanged page is not repainted. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

/** Run `work` now and `pauseMs` after each run, except in a hidden tab. Returns the stop function. */
export function every(pauseMs, work) {
  let timer = 0;
  let isStopped = false;
  async function turn() {
    try {
      if (!document.hidden) await work();
    } finally {
      if (!isStopped) timer = setTimeout(turn, pauseMs);
    }
  }
  turn();
  return () => {
    isStopped = true;
    clearTimeout(timer);
  };
}

const ICONS = {
  overview: "M3 13h4l3-9 4 16 3-7h4",
  queues: "M4 6h16M4 12h16M4 18h10",
  connections: "M8 12h8M5 8a4 4 0 0 0 0 8M19 8a4 4 0 0 1 0 8",
  exchanges: "M4 12h5l4-6h7M9 12l4 6h7M17 3l3 3-3 3M17 15l3 3-3 3",
  governor: "M12 3v18M8 21h8M12 5 6 12M12 5l6 7M6 15l6 3 6-3M3.5 13.5a2 2 0 1 0 4 0 2 2 0 1 0-4 0M16.5 13.5a2 2 0 1 0 4 0 2 2 0 1 0-4 0",
  admission: "M5 21V4M5 5h14M19 5v4M9 21V12h10v9M14 16v1",
  domain: "M12 3v5M5 16v-3h14v3M12 8v5M9 3h6v5H9zM2 16h6v5H2zM16 16h6v5h-6z",
  models: "M12 3 3 7.5l9 4.5 9-4.5zM3 12l9 4.5 9-4.5M3 16.5 12 21l9-4.5",
  experiments: "M9 3h6M10 3v6l-5 10a1.4 1.4 0 0 0 1.2 2h11.6a1.4 1.4 0 0 0 1.2-2L14 9V3M8 15h8",
  menu: "M4 7h16M4 12h16M4 17h16",
  close: "M6 6l12 12M18 6 6 18",
  check: "M5 13l4 4L19 7",
  warn: "M12 4 2.5 20h19zM12 10v4M12 17v.5",
  info: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18M12 11v5M12 7.6v.4",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13M15.5 15.5 20 20",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
};

/** A decorative icon, hidden from screen readers. */
export function icon(name) {
  return svg(
    "svg.icon",
    { viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: ICONS[name] }),
  );
}

/** The logo: a centrifugal governor. */
export function logo() {
  return svg(
    "svg.logo",
    { viewBox: "0 0 32 32", "aria-hidden": "true", focusable: "false" },
    svg("path", { d: "M16 3v26M10 29h12M16 6 6.5 17M16 6l9.5 11M6.5 17 16 23l9.5-6" }),
    svg("circle", { cx: 6.5, cy: 17, r: 3.5 }),
    svg("circle", { cx: 25.5, cy: 17, r: 3.5 }),
  );
}
