"use strict";
(() => {
  const root = document.documentElement;
  const canvases = [...document.querySelectorAll(".canvas")];
  const probe = document.createElement("span");
  probe.hidden = true;
  document.body.append(probe);

  // A colour of a figure is the name of one of the page's, with an opacity if it has one: series-1/0.2
  function colourOf(name) {
    const [variable, opacity] = name.split("/");
    probe.style.color = `var(--${variable})`;
    const [red, green, blue] = getComputedStyle(probe).color.match(/[\d.]+/g);
    return `rgba(${red}, ${green}, ${blue}, ${opacity ?? 1})`;
  }

  function coloured(value, key) {
    if (Array.isArray(value)) return value.map((part) => coloured(part, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, part]) => [name, coloured(part, name)]));
    }
    return typeof value === "string" && /color$/.test(key ?? "") ? colourOf(value) : value;
  }

  function axis(given) {
    const lines = { gridcolor: colourOf("grid"), linecolor: colourOf("edge"), zerolinecolor: colourOf("edge"), tickcolor: colourOf("edge") };
    const title = { ...given?.title, standoff: 10, font: { size: 12.5, color: colourOf("ink-2") } };
    return { automargin: true, separatethousands: true, exponentformat: "none", ...lines, ...given, title };
  }

  // A figure of several plots has several axes: xaxis, yaxis, yaxis2.
  function axesOf(given) {
    return [...new Set(["xaxis", "yaxis", ...Object.keys(given).filter((name) => /^[xy]axis\d*$/.test(name))])];
  }

  function layoutOf(given, canvas) {
    const family = getComputedStyle(document.body).fontFamily;
    const surface = colourOf("surface");
    return {
      ...given,
      height: canvas.clientHeight,
      ...(isPrinting ? { width: PAPER_WIDTH } : {}),
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family, size: 12, color: colourOf("ink-2") },
      margin: { l: 56, r: 14, t: 10, b: 40 },
      hoverlabel: { bgcolor: surface, bordercolor: colourOf("edge"), font: { family, color: colourOf("ink") }, namelength: -1 },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: colourOf("muted"), activecolor: colourOf("ink") },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom", maxheight: 0.3, font: { size: 12 }, ...given.legend },
      barcornerradius: 3,
      showlegend: given.showlegend ?? true,
      ...Object.fromEntries(axesOf(given).map((name) => [name, axis(given[name])])),
    };
  }

  // The page is laid out for paper only after its plots are drawn: they have to know how wide that is.
  const PAPER_WIDTH = 660;
  let isPrinting = false;
  let before;

  const settings = {
    responsive: true,
    displaylogo: false,
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"],
  };

  function draw(canvas) {
    const { data, layout } = JSON.parse(document.getElementById(canvas.dataset.figure).textContent);
    const call = canvas.dataset.drawn ? Plotly.react : Plotly.newPlot;
    canvas.dataset.drawn = "true";
    return call(canvas, coloured(data), layoutOf(coloured(layout), canvas), settings);
  }

  let loading;
  function loadPlotly() {
    loading ??= (async () => {
      const store = document.getElementById("plotly");
      const packed = Uint8Array.from(atob(store.textContent.trim()), (letter) => letter.charCodeAt(0));
      const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
      const script = document.createElement("script");
      script.textContent = await new Response(stream).text();
      document.head.append(script);
      script.remove();
      store.remove();
    })();
    return loading;
  }

  // One after the other, with a breath between them, so that scrolling stays fluid.
  let queue = Promise.resolve();
  function show(canvas) {
    queue = queue.then(async () => {
      try {
        await loadPlotly();
        await new Promise((resolve) => setTimeout(resolve));
        await draw(canvas);
      } catch (error) {
        document.getElementById("no-plots").hidden = false;
        console.error(error);
      }
    });
  }

  const seen = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      seen.unobserve(target);
      show(target);
    }
  }, { rootMargin: "600px" });
  canvases.forEach((canvas) => seen.observe(canvas));

  // Those in view at once, others when they come into view again: a long report has many.
  function redraw() {
    canvases.filter((canvas) => canvas.dataset.drawn).forEach((canvas) => seen.observe(canvas));
  }

  // Pages opened from a file may have no storage.
  function remember(theme) {
    try { localStorage.setItem("flyball-theme", theme); } catch {}
  }
  function remembered() {
    try { return localStorage.getItem("flyball-theme") ?? "auto"; } catch { return "auto"; }
  }
  function setTheme(theme) {
    if (theme === "auto") delete root.dataset.theme;
    else root.dataset.theme = theme;
  }
  const themes = document.querySelector(".themes");
  themes.hidden = false;
  setTheme(remembered());
  const chosen = themes.querySelector(`[value="${CSS.escape(remembered())}"]`);
  if (chosen) chosen.checked = true;
  themes.addEventListener("change", (event) => {
    setTheme(event.target.value);
    remember(event.target.value);
    redraw();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);

  // On paper everything is light, drawn and open.
  addEventListener("beforeprint", () => {
    before = { theme: root.dataset.theme ?? "auto", closed: [...document.querySelectorAll("main details:not([open])")] };
    isPrinting = true;
    setTheme("light");
    before.closed.forEach((part) => { part.open = true; });
    if (window.Plotly) canvases.forEach(draw);
  });
  addEventListener("afterprint", () => {
    isPrinting = false;
    setTheme(before.theme);
    before.closed.forEach((part) => { part.open = false; });
    redraw();
  });

  const contents = document.querySelector("nav.contents");
  if (contents) {
    const wide = matchMedia("(min-width: 75rem)");
    const unfold = () => { contents.querySelector("details").open = wide.matches; };
    wide.addEventListener("change", unfold);
    unfold();
    const links = new Map([...contents.querySelectorAll("a")].map((link) => [link.hash.slice(1), link]));
    const parts = [...document.querySelectorAll("main section[id]")].filter((part) => links.has(part.id));
    const mark = () => {
      const current = parts.findLast((part) => part.getBoundingClientRect().top < innerHeight / 3) ?? parts[0];
      links.forEach((link, id) => {
        if (id === current.id) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      });
    };
    addEventListener("scroll", mark, { passive: true });
    mark();
  }
})();
