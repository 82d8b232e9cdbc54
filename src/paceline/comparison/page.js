// Draws the plots in the colours of the theme and in the width at hand, now and when they change.
(() => {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const figures = read("figures");
  const themes = read("themes");
  const plots = [...document.querySelectorAll(".plot")];
  const buttons = [...document.querySelectorAll("button[data-run]")];
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const paper = matchMedia("print");
  const mouse = matchMedia("(pointer: fine)");
  const off = new Set();
  const drawn = new Set();
  const widths = new WeakMap();
  let isPrinting = false;

  const themed = (value, theme, key) => {
    if (Array.isArray(value)) return value.map((one) => themed(one, theme, key));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, themed(v, theme, k)]));
    }
    const isToken = typeof value === "string" && value.startsWith("@") && key.endsWith("color");
    return isToken ? theme[value.slice(1)] : value;
  };

  const draw = (plot) => {
    const onPaper = isPrinting || paper.matches;
    const theme = themes[onPaper ? "print" : dark.matches ? "dark" : "light"];
    const figure = themed(figures[plot.id], theme, "");
    // Where there is no mouse, a drag is how one scrolls; then no plot may take it.
    const canZoom = mouse.matches && plot.dataset.zoom === "yes";
    for (const axis of ["xaxis", "yaxis"]) {
      figure.layout[axis].fixedrange = figure.layout[axis].fixedrange || !canZoom;
    }
    figure.layout.dragmode = canZoom ? "zoom" : false;
    // A page has a width of its own, which nothing can measure before it is printed.
    figure.layout.width = onPaper ? Number(plot.dataset.print) : plot.clientWidth;
    const shrink = onPaper ? Number(plot.dataset.shrink) : 1;
    figure.layout.height *= shrink;
    plot.style.minHeight = `${figure.layout.height}px`;
    // The names above bars move closer to them.
    for (const label of figure.layout.annotations ?? []) {
      if (label.yshift) {
        label.yshift *= shrink;
        label.font.size = Math.max(7, 12 * shrink);
      }
    }
    // The rows of a timeline become thinner.
    for (const shape of figure.layout.shapes ?? []) {
      if (shape.type === "path") shape.line.width *= shrink;
    }
    for (const trace of figure.data) {
      if (off.has(trace.meta.run)) {
        if (trace.type === "bar") trace.opacity = 0.15;
        else trace.visible = false;
      }
    }
    drawn.add(plot);
    widths.set(plot, plot.clientWidth);
    return Plotly.react(plot, figure.data, figure.layout, { displayModeBar: false });
  };

  const isShown = (plot) => plot.offsetParent !== null;
  const redraw = () => [...drawn].filter(isShown).forEach(draw);
  const drawAll = () => plots.filter(isShown).forEach(draw);

  dark.addEventListener("change", redraw);
  paper.addEventListener("change", drawAll);
  addEventListener("beforeprint", () => { isPrinting = true; drawAll(); });
  addEventListener("afterprint", () => { isPrinting = false; redraw(); });

  // A plot that comes into sight is drawn first, and one that was hidden has no width until then.
  const resized = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const isNew = widths.get(target) !== target.clientWidth;
      if (isNew && drawn.has(target) && isShown(target)) draw(target);
      widths.set(target, target.clientWidth);
    }
  });
  const inSight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (isIntersecting && !drawn.has(target)) draw(target);
    }
  }, { rootMargin: "300px" });
  for (const plot of plots) {
    resized.observe(plot);
    inSight.observe(plot);
  }

  const show = (run, isOn) => {
    if (isOn) off.delete(run); else off.add(run);
    buttons[run].setAttribute("aria-pressed", String(isOn));
    document.querySelectorAll(`[data-of="${run}"]`).forEach((part) => {
      if (part.tagName === "TR") part.classList.toggle("off", !isOn);
      else part.hidden = !isOn;
    });
  };
  buttons.forEach((button, run) => button.addEventListener("click", () => {
    show(run, off.has(run));
    redraw();
  }));
  for (const [id, isOn] of [["show-all", true], ["hide-all", false]]) {
    document.getElementById(id)?.addEventListener("click", () => {
      buttons.forEach((_, run) => show(run, isOn));
      redraw();
    });
  }

  // From the top down and a few at a time, so that the page can be read meanwhile.
  const rest = [...plots];
  const next = () => {
    const end = performance.now() + 40;
    while (rest.length && performance.now() < end) {
      const plot = rest.shift();
      if (!drawn.has(plot) && isShown(plot)) draw(plot);
    }
    if (rest.length) setTimeout(next);
    else document.documentElement.dataset.drawn = String(drawn.size);
  };
  next();
})();
