// Draws the report's charts from the embedded data. The page is complete without
// them: everything they show in numbers is in the table or the JSON output.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const SIZES = ["4 KB", "2 MB", "1 GB"];
  const REASONS = [...new Set(data.exits.map((e) => e.reason))];
  // Distinct from the configurations' blues and oranges as far as eleven hues can be.
  const REASON_COLOURS = ["#4c9f70", "#8e63b5", "#d1495b", "#e9b44c", "#3d7ea6", "#9b7653",
    "#e07a9f", "#6c757d", "#a3b844", "#2a9d8f", "#b56576"];

  // Short runs in milliseconds: axis labels of 0.0002 run into each other.
  const short = data.timeline.every((p) => p.to < 1);
  const unit = short ? "ms" : "s";
  for (const p of data.timeline) {
    p.from *= short ? 1000 : 1;
    p.to *= short ? 1000 : 1;
  }

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const rows = 34 * Math.max(1, data.configs.length);

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
  const configY = { field: "config", type: "nominal", sort: data.configs, title: null,
    axis: { labelFontWeight: 600, labelPadding: 8, ticks: false, domain: false } };
  const configColour = (configs) => ({ domain: configs, range: configs.map((c) => css("--" + c)) });
  // Large host pages are dashed: two lines on top of each other can both be seen.
  const configDash = (configs) =>
    ({ domain: configs, range: configs.map((c) => (c.endsWith("-2m") ? [6, 4] : [1, 0])) });

  const overhead = () => {
    const parts = data.bars.flatMap((b) => [
      { config: b.config, part: "page walks", order: 0, percent: b.walk },
      { config: b.config, part: "hypervisor", order: 1, percent: b.vmm },
    ]);
    const sums = data.bars.map((b) => ({ config: b.config, sum: b.walk + b.vmm, long_lived: b.long_lived }));
    return {
      ...base(), height: rows,
      layer: [
        {
          data: { values: parts },
          mark: { type: "bar", height: 20 },
          encoding: {
            y: configY,
            x: { field: "percent", type: "quantitative", stack: "zero", title: "overhead, % of the ideal run",
              axis: { tickCount: 6 } },
            color: { field: "config", type: "nominal", scale: configColour(data.configs), legend: null },
            opacity: { field: "part", type: "ordinal", title: null, sort: ["page walks", "hypervisor"],
              scale: { domain: ["page walks", "hypervisor"], range: [1, 0.45] },
              legend: { symbolFillColor: css("--native"), symbolStrokeColor: css("--native") } },
            order: { field: "order" },
            tooltip: [
              { field: "config", title: "configuration" }, { field: "part", title: "part" },
              { field: "percent", type: "quantitative", format: ",.2f", title: "% of the ideal run" },
            ],
          },
        },
        {
          data: { values: sums },
          mark: { type: "tick", thickness: 2.5, size: 28, color: css("--ink") },
          encoding: {
            y: configY, x: { field: "long_lived", type: "quantitative" },
            tooltip: [
              { field: "config", title: "configuration" },
              { field: "long_lived", type: "quantitative", format: ",.2f", title: "long-lived, %" },
            ],
          },
        },
        {
          data: { values: sums },
          mark: { type: "text", align: "left", dx: 8, fontSize: 12, color: css("--ink") },
          encoding: {
            y: configY, x: { field: "sum", type: "quantitative" },
            text: { field: "sum", type: "quantitative", format: ",.2f" },
          },
        },
      ],
    };
  };

  // Where configurations differ by magnitudes, a linear axis shows only the dearest.
  const wide = (values, field, configs) => {
    const means = configs.map((c) => {
      const own = values.filter((v) => v.config === c);
      return own.reduce((sum, v) => sum + v[field], 0) / Math.max(1, own.length);
    }).filter((m) => m > 0);
    return means.length > 1 && Math.max(...means) > 20 * Math.min(...means) && Math.max(...means) > 10;
  };
  const yAxis = (values, field, title, configs) => {
    if (!wide(values, field, configs)) {
      return { field, type: "quantitative", title, axis: { tickCount: 5 } };
    }
    const top = Math.max(...values.map((v) => v[field]));
    const ticks = [0];
    for (let t = 1; t < 10 * top; t *= 10) ticks.push(t);
    return { field, type: "quantitative", title: title + " (log scale)",
      scale: { type: "symlog", constant: 1 }, axis: { values: ticks, format: ",.0f" } };
  };

  const timeline = (field, title, values, configs, height) => ({
    ...base(), height, data: { values },
    params: [
      { name: "picked", select: { type: "point", fields: ["config"] }, bind: "legend" },
      { name: "zoom", select: { type: "interval", encodings: ["x"] }, bind: "scales" },
    ],
    mark: { type: "line", interpolate: "step-after", strokeWidth: 1.8, clip: true },
    encoding: {
      x: { field: "from", type: "quantitative", title: "ideal time, " + unit, axis: { grid: false, tickCount: 10 },
        scale: { nice: false } },
      y: yAxis(values, field, title, configs),
      color: { field: "config", type: "nominal", sort: configs, scale: configColour(configs), title: null,
        legend: { symbolType: "stroke", symbolStrokeWidth: 3, symbolSize: 300 } },
      strokeDash: { field: "config", type: "nominal", sort: configs, scale: configDash(configs), title: null },
      opacity: { condition: { param: "picked", value: 1 }, value: 0.12 },
      tooltip: [
        { field: "config", title: "configuration" },
        { field: "from", type: "quantitative", format: ".4~g", title: "from, " + unit },
        { field, type: "quantitative", format: ",.2f", title },
      ],
    },
  });
  // A step line needs the end of its last step.
  const closed = (points) => {
    const end = Math.max(...points.map((p) => p.to));
    return points.concat(points.filter((p) => p.to === end).map((p) => ({ ...p, from: end })));
  };

  const stacked = (values, field, title, key, order, colours, extra) => ({
    ...base(), height: rows, data: { values },
    mark: { type: "bar", height: 20 },
    encoding: {
      y: configY,
      x: { field, type: "quantitative", stack: "zero", title, axis: { tickCount: 5 } },
      color: { field: key, type: "nominal", sort: order, title: null,
        scale: { domain: order, range: colours }, legend: { columns: 3 } },
      order: { field: "order", type: "quantitative" },
      tooltip: [
        { field: "config", title: "configuration" }, { field: key },
        { field, type: "quantitative", format: extra.format, title },
        ...(extra.doc ? [{ field: "doc", title: "what" }] : []),
      ],
    },
  });

  const specs = () => {
    const misses = data.bars.flatMap((b) =>
      b.misses.map((per, i) => ({ config: b.config, size: SIZES[i], order: i, per })));
    const exits = data.exits.map((e) => ({ ...e, order: REASONS.indexOf(e.reason) }));
    // Configurations without exits keep their row.
    for (const config of data.configs) {
      if (!exits.some((e) => e.config === config) && REASONS.length) {
        exits.push({ config, reason: REASONS[0], order: 0, count: 0, doc: "" });
      }
    }
    const hypervised = data.timeline.filter((p) => p.config !== "native");
    return {
      overhead: overhead(),
      timeline: data.timeline.length &&
        timeline("overhead", "overhead, % of the ideal run", closed(data.timeline), data.configs, 260),
      cold: hypervised.some((p) => p.cold > 0) &&
        timeline("cold", "added by a cold start, %", closed(hypervised),
          data.configs.filter((c) => c !== "native"), 160),
      misses: stacked(misses, "per", "TLB misses per 1000 instructions", "size", SIZES,
        ["#5b8c85", "#94c9a9", "#d9e8b0"], { format: ",.3f" }),
      exits: REASONS.length && stacked(exits, "count", "exits", "reason", REASONS,
        REASON_COLOURS, { format: ",", doc: true }),
    };
  };

  const draw = () => {
    for (const [id, spec] of Object.entries(specs())) {
      const place = document.getElementById(id);
      if (!spec) {
        (document.getElementById(id + "-part") || place).hidden = true;
        continue;
      }
      // `ast` interprets expressions instead of compiling them: no eval in the page.
      vegaEmbed(place, spec, { actions: { export: true, source: false, compiled: false, editor: false },
        ast: true, renderer: "svg" })
        .catch((e) => { place.textContent = "This chart could not be drawn: " + e; });
    }
  };
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
