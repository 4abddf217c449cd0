// Parts that the charts of all pages share: colours, axes, curves over time and, below the curves on the same time
// scale, strips of the modes that policies were in.
const bifold = (() => {
  "use strict";
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // A mode's colour: that of its small host pages, where page sizes make a difference.
  const colour = (mode) => css("--" + mode + "-4k") || css("--" + mode);
  // The mean of #rrggbb colours with these weights.
  const mixed = (colours, weights) => {
    const channel = (at) => colours.reduce((sum, c, i) => sum + weights[i] * parseInt(c.slice(at, at + 2), 16), 0);
    const all = weights.reduce((sum, w) => sum + w, 0);
    return "rgb(" + [1, 3, 5].map((at) => Math.round(channel(at) / all)).join(",") + ")";
  };

  const base = () => ({
    $schema: "https://vega.github.io/schema/vega-lite/v6.json",
    width: "container",
    background: null,
    autosize: { type: "fit-x", contains: "padding" },
    config: {
      font: getComputedStyle(document.body).fontFamily,
      view: { stroke: null },
      axis: {
        labelColor: css("--ink"), titleColor: css("--soft"), titleFontWeight: "normal", titleFontSize: 12,
        labelFontSize: 12, gridColor: css("--line"), domainColor: css("--line"), tickColor: css("--line"),
      },
      legend: {
        labelColor: css("--ink"), titleColor: css("--soft"), titleFontWeight: "normal", labelFontSize: 12,
        titleFontSize: 12, orient: "top", symbolType: "square", labelLimit: 220,
      },
    },
  });

  // Whether the screen has no room for a row of all names and for many ticks.
  const narrow = () => window.innerWidth < 600;

  // Short runs in milliseconds: axis labels of 0.0002 run into each other.
  const unit = (end) => (end < 1 ? { name: "ms", factor: 1000 } : { name: "s", factor: 1 });
  const time = (unit, end) => ({
    title: "time of the ideal run, " + unit.name, axis: { grid: false, tickCount: narrow() ? 5 : 10 },
    scale: { nice: false, ...(end ? { domain: [0, end * unit.factor] } : {}) },
  });

  const sorted = (values, field, name) =>
    values.filter((v) => v.config === name).map((v) => v[field]).sort((a, b) => a - b);

  // Each curve's median: one expensive stretch does not raise it.
  const usual = (values, field, names) => names.map((c) => {
    const own = sorted(values, field, c);
    return own[own.length >> 1] || 0;
  }).filter((m) => m > 0);

  // Where a few stretches cost far more than all others (mostly the first, whose tables and caches are cold), the axis
  // ends above the others and cuts the few off; undefined if nothing is cut off.
  const ceiling = (values, field, names) => {
    const high = names.map((c) => sorted(values, field, c)).filter((own) => own.length >= 8)
      .map((own) => own[own.length - 1 - Math.max(1, Math.floor(own.length / 20))]);
    const most = Math.max(0, ...high);
    const top = values.reduce((top, v) => Math.max(top, v[field]), 0);
    return most > 0 && top > 2.5 * most ? 1.2 * most : undefined;
  };

  // Labels at the places that are cut off, one label for neighbouring stretches.
  const cut = (values, field, top, end) => {
    const labels = [];
    for (const v of values.filter((v) => v[field] > top).sort((a, b) => a.from - b.from)) {
      const last = labels[labels.length - 1];
      if (!last || v.from - last.from > 0.25 * end) labels.push({ from: v.from, most: v });
      else if (v[field] > last.most[field]) last.most = v;
    }
    const number = (n) => n.toLocaleString("en", { maximumFractionDigits: n < 100 ? 1 : 0 });
    return labels.map((l) => ({ from: l.from, top,
      // Near the right end the label stands to the left of its place.
      late: l.from > 0.7 * end,
      text: "\u25b2 up to " + number(l.most[field]) + " (" + l.most.config + ")" }));
  };

  // A logarithmic axis where curves differ by magnitudes, or one curve varies by magnitudes for too long to be cut off: a
  // linear axis would show only the highest.
  const yAxis = (values, field, title, names) => {
    const top = values.reduce((most, v) => Math.max(most, v[field]), 0);
    const medians = usual(values, field, names);
    const middle = Math.max(0, ...medians);
    const end = ceiling(values, field, names);
    const wide = medians.length > 1 && middle > 20 * Math.min(...medians);
    if (top <= 10 || (!(wide && middle > 10) && (end || top) <= 20 * middle)) {
      return { field, type: "quantitative", title, axis: { tickCount: 5 },
        ...(end ? { scale: { domain: [0, end], nice: false } } : {}) };
    }
    const ticks = [0];
    for (let t = 1; t < 10 * top; t *= 10) ticks.push(t);
    return { field, type: "quantitative", title: title + " (log scale)",
      scale: { type: "symlog", constant: 1 }, axis: { values: ticks, format: ",.0f" } };
  };

  // Room for policies' names beside strips, and the same beside the curves above them.
  const ROOM = 112;
  const curves = ({ field, title, values, names, colour, height, x, end, aligned }) => {
    const y = yAxis(values, field, title, names);
    if (aligned) y.axis = { ...y.axis, minExtent: ROOM, maxExtent: ROOM };
    const line = {
      data: { values },
      params: [
        { name: "picked", select: { type: "point", fields: ["config"] }, bind: "legend" },
        { name: "zoom", select: { type: "interval", encodings: ["x"] }, bind: "scales" },
      ],
      mark: { type: "line", interpolate: "step-after", strokeWidth: 1.8, clip: true },
      encoding: {
        x: { field: "from", type: "quantitative", ...time(x, end) },
        y,
        color: { field: "config", type: "nominal", sort: names, title: null,
          scale: { domain: names, range: names.map(colour) },
          legend: { symbolType: "stroke", symbolStrokeWidth: 3, symbolSize: 300,
            columns: narrow() ? (aligned ? 1 : 2) : 0 } },
        // Large host pages are dashed: two lines on top of each other can both be seen.
        strokeDash: { field: "config", type: "nominal", sort: names, title: null,
          scale: { domain: names, range: names.map((c) => (c.endsWith("-2m") ? [6, 4] : c.endsWith("-1g") ? [2, 3] : [1, 0])) } },
        opacity: { condition: { param: "picked", value: 1 }, value: 0.12 },
        tooltip: [
          { field: "config", title: "configuration" },
          { field: "from", type: "quantitative", format: ".4~g", title: "start, " + x.name },
          { field, type: "quantitative", format: ",.2f", title },
        ],
      },
    };
    const top = y.scale && y.scale.domain && y.scale.domain[1];
    if (!top) return { ...base(), height, ...line };
    const words = cut(values, field, top, end * x.factor);
    const labels = (late) => ({
      data: { values: words.filter((w) => w.late === late) },
      mark: { type: "text", align: late ? "right" : "left", baseline: "top", dx: late ? -6 : 6, dy: 3,
        fontSize: 12, color: css("--ink"), clip: true },
      encoding: {
        x: { field: "from", type: "quantitative" }, y: { field: "top", type: "quantitative" },
        text: { field: "text" },
      },
    });
    return { ...base(), height, layer: [line, labels(false), labels(true)] };
  };

  const strips = (data, x) => {
    const modes = ["nested", ...data.modes];
    const colours = modes.map(colour);
    const at = (step) => (data.starts ? data.starts[step] ?? data.end : Math.min(step * data.step, data.end)) * x.factor;
    const values = data.strips.flatMap((s) => {
      let from = 0;
      return s.stretches.map(([end, ...times]) => {
        const shares = [100 - times.reduce((sum, t) => sum + t, 0), ...times];
        const whole = shares.indexOf(100);
        const parts = data.modes.map((m, i) => times[i] + " % of the time in " + m).filter((_, i) => times[i] > 0);
        const stretch = {
          policy: s.name, overhead: s.overhead, colour: mixed(colours, shares),
          from: at(from),
          to: at(end),
          mode: whole >= 0 ? modes[whole] : parts.join(", "),
        };
        from = end;
        return stretch;
      });
    });
    return {
      ...base(), height: 21 * data.strips.length, data: { values },
      params: [{ name: "zoom", select: { type: "interval", encodings: ["x"] }, bind: "scales" }],
      mark: { type: "bar", height: 15, clip: true },
      encoding: {
        y: { field: "policy", type: "nominal", sort: data.strips.map((s) => s.name), title: "policy",
          axis: { ticks: false, domain: false, labelPadding: 8, labelLimit: ROOM - 10,
            minExtent: ROOM, maxExtent: ROOM } },
        x: { field: "from", type: "quantitative", ...time(x, data.end) },
        x2: { field: "to" },
        color: { field: "colour", type: "nominal", legend: null, scale: null },
        tooltip: [
          { field: "policy", title: "policy" }, { field: "mode", title: "mode" },
          { field: "from", type: "quantitative", format: ".4~g", title: "start, " + x.name },
          { field: "to", type: "quantitative", format: ".4~g", title: "end, " + x.name },
          { field: "overhead", title: "overhead of the whole run" },
        ],
      },
    };
  };

  // `ast` interprets expressions instead of compiling them: no eval in the page.
  const embed = (place, spec) =>
    vegaEmbed(place, spec, { actions: { export: true, source: false, compiled: false, editor: false },
      ast: true, renderer: "svg" })
      .catch((e) => { place.textContent = "This chart could not be drawn: " + e; });

  // A zoom in one of these charts zooms all of them.
  const linked = (charts) => Promise.all(charts).then((all) => {
    const views = all.filter(Boolean).map((r) => r.view);
    let busy = false;
    for (const view of views) {
      view.addSignalListener("zoom_from", (_, domain) => {
        if (busy) return;
        busy = true;
        const others = views.filter((v) => v !== view);
        Promise.all(others.map((v) => v.signal("zoom_from", domain).runAsync())).finally(() => { busy = false; });
      });
    }
  }).catch(() => {}); // Charts work without the link too.

  return { css, colour, base, narrow, unit, time, curves, strips, embed, linked };
})();
