// Draws the report's charts from the embedded data. Where a chart writes a number that the table has, the number is
// the table's cell.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const SIZES = ["4 KB", "2 MB", "1 GB"];
  const REASONS = [...new Set(data.exits.map((e) => e.reason))];
  // Distinct from the configurations' blues and oranges as far as eleven hues can be.
  const REASON_COLOURS = ["#4c9f70", "#8e63b5", "#d1495b", "#e9b44c", "#3d7ea6", "#9b7653",
    "#e07a9f", "#6c757d", "#a3b844", "#2a9d8f", "#b56576"];

  const { css, base } = bifold;
  const end = data.timeline.reduce((most, p) => Math.max(most, p.to), 0);
  const x = bifold.unit(end);
  for (const p of data.timeline) {
    p.from *= x.factor;
    p.to *= x.factor;
  }
  const rows = 34 * Math.max(1, data.configs.length);
  const configY = { field: "config", type: "nominal", sort: data.configs, title: null,
    axis: { labelFontWeight: 600, labelPadding: 8, ticks: false, domain: false } };
  const configColour = (configs) => ({ domain: configs, range: configs.map((c) => css("--" + c)) });

  const times = () => {
    const kinds = [
      { part: "ideal run", field: "ideal", opacity: 0.2 },
      { part: "page walks", field: "walk", cell: "walks", opacity: 0.45 },
      { part: "hypervisor", field: "vmm", cell: "VMM", opacity: 0.7 },
      ...(data.has_data ? [{ part: "waits for data", field: "data", cell: "data", opacity: 0.85 },
        { part: "host frames", field: "frames", cell: "frames", opacity: 1 }] : []),
    ];
    // A bar that is far longer than most is cut off, so that the others differ in sight.
    const lengths = data.bars.map((b) => b.time).sort((a, b) => a - b);
    const usual = lengths[lengths.length >> 1];
    const cap = lengths[lengths.length - 1] > 3 * usual ? 2 * usual : Infinity;
    const cut = (v) => Math.min(v, cap);
    const parts = [];
    const ends = [];
    for (const b of data.bars) {
      // Parts that are less than 0 hang to the left.
      let [right, left] = [0, 0];
      for (const { part, field, cell } of kinds) {
        const from = b[field] < 0 ? left : right;
        const to = from + b[field];
        if (b[field] < 0) left = to;
        else right = to;
        const text = cell ? b.cells[cell] + " % of the ideal run" : b.ideal.toPrecision(5) + " " + data.unit;
        parts.push({ config: b.config, part, from: cut(from), to: cut(to), text });
      }
      const end = Math.max(right, b.high);
      ends.push({ config: b.config, end: cut(end), low: cut(b.low), high: cut(b.high),
        text: (right > cap ? "\u25b8 " : "") + b.cells.time });
    }
    // Room for the label behind the longest bar.
    const most = Math.max(...ends.map((e) => e.end)) * (bifold.narrow() ? 1.5 : 1.12);
    const least = Math.min(0, ...parts.map((p) => p.to));
    return {
      ...base(), height: rows,
      layer: [
        {
          data: { values: parts },
          mark: { type: "bar", height: 20 },
          encoding: {
            y: configY,
            x: { field: "from", type: "quantitative", title: "predicted time, " + data.unit,
              scale: { domain: [least, most], nice: false }, axis: { tickCount: bifold.narrow() ? 4 : 6 } },
            x2: { field: "to" },
            color: { field: "config", type: "nominal", scale: configColour(data.configs), legend: null },
            opacity: { field: "part", type: "ordinal", title: null, sort: kinds.map((k) => k.part),
              scale: { domain: kinds.map((k) => k.part), range: kinds.map((k) => k.opacity) },
              legend: { symbolFillColor: css("--native"), symbolStrokeColor: css("--native"),
                columns: bifold.narrow() ? 1 : 0 } },
            tooltip: [
              { field: "config", title: "configuration" }, { field: "part", title: "part" }, { field: "text", title: "cost" },
            ],
          },
        },
        {
          data: { values: ends },
          mark: { type: "rule", color: css("--ink"), strokeWidth: 1 },
          encoding: { y: configY, x: { field: "low", type: "quantitative" }, x2: { field: "high" } },
        },
        {
          data: { values: ends },
          mark: { type: "text", align: "left", dx: 8, fontSize: 12, color: css("--ink") },
          encoding: {
            y: configY, x: { field: "end", type: "quantitative" }, text: { field: "text" },
          },
        },
      ],
    };
  };

  const timeline = (field, title, values, configs, height) => bifold.curves({
    field, title, values, names: configs, colour: (c) => css("--" + c), height, x, end, aligned: Boolean(data.strips),
  });
  // A step line needs the end of its last step.
  const closed = (points) => {
    const end = Math.max(...points.map((p) => p.to));
    return points.concat(points.filter((p) => p.to === end).map((p) => ({ ...p, from: end })));
  };

  // Bars of a count's parts; behind each stands the sum as the table has it.
  const stacked = (values, field, title, key, order, colours, extra) => {
    const sums = data.bars.map((b) => ({ config: b.config, text: b.cells[extra.cell],
      sum: values.filter((v) => v.config === b.config).reduce((sum, v) => sum + v[field], 0) }));
    return {
      ...base(), height: rows,
      layer: [
        {
          data: { values },
          mark: { type: "bar", height: 20 },
          encoding: {
            y: configY,
            x: { field, type: "quantitative", stack: "zero", title, axis: { tickCount: bifold.narrow() ? 3 : 5 } },
            color: { field: key, type: "nominal", sort: order, title: null,
              scale: { domain: order, range: colours }, legend: { columns: bifold.narrow() ? 2 : 3 } },
            order: { field: "order", type: "quantitative" },
            tooltip: [
              { field: "config", title: "configuration" }, { field: key, title: key },
              { field, type: "quantitative", format: extra.format, title },
              ...(extra.doc ? [{ field: "doc", title: "meaning" }] : []),
            ],
          },
        },
        {
          data: { values: sums },
          mark: { type: "text", align: "left", dx: 6, fontSize: 12, color: css("--ink") },
          encoding: { y: configY, x: { field: "sum", type: "quantitative" }, text: { field: "text" } },
        },
      ],
    };
  };

  // Sizes differ by doublings, refaults by magnitudes and down to 0.
  const refaults = (values) => {
    const most = Math.max(...values.map((v) => v.refaults));
    const ticks = [0];
    for (let t = 10; t < 10 * most; t *= 10) ticks.push(t);
    const names = ["LRU", "fewest possible"];
    return {
      ...base(), height: 220, data: { values },
      mark: { type: "line", point: { size: 36 }, strokeWidth: 1.8 },
      encoding: {
        x: { field: "mib", type: "quantitative", title: "memory, MiB", scale: { type: "log", base: 2, nice: false },
          axis: { grid: false, format: ",~r", tickCount: bifold.narrow() ? 5 : 10 } },
        y: { field: "refaults", type: "quantitative", title: "refaults (log scale)",
          scale: { type: "symlog", constant: 1 }, axis: { values: ticks, format: ",.0f" } },
        color: { field: "how", type: "nominal", sort: names, title: null,
          scale: { domain: names, range: [css("--nested-4k"), css("--native")] }, legend: { symbolType: "stroke" } },
        tooltip: [
          { field: "how", title: "choice" }, { field: "mib", title: "memory, MiB", format: ",.1f" },
          { field: "refaults", title: "refaults", format: "," },
        ],
      },
    };
  };

  const sets = (values) => {
    const names = ["used", "written"];
    const points = closed(values.flatMap((s) =>
      names.map((config) => ({ config, from: s.from * x.factor, to: s.to * x.factor, mib: s[config] }))));
    return {
      ...base(), height: 160, data: { values: points },
      mark: { type: "line", interpolate: "step-after", strokeWidth: 1.8 },
      encoding: {
        x: { field: "from", type: "quantitative", ...bifold.time(x, end) },
        y: { field: "mib", type: "quantitative", title: "MiB" },
        color: { field: "config", type: "nominal", sort: names, title: null,
          scale: { domain: names, range: [css("--nested-4k"), css("--shadow-4k")] }, legend: { symbolType: "stroke" } },
        tooltip: [
          { field: "config", title: "pages" }, { field: "mib", title: "MiB", format: ",.1f" },
          { field: "from", title: "from, " + x.name, format: ",.3f" }, { field: "to", title: "to, " + x.name, format: ",.3f" },
        ],
      },
    };
  };

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
      times: times(),
      timeline: data.timeline.length &&
        timeline("overhead", "overhead, % of the ideal run", closed(data.timeline), data.configs, 260),
      strips: data.strips && bifold.strips(data.strips, x),
      cold: hypervised.some((p) => p.cold > 0) &&
        timeline("cold", "overhead of a cold start, %", closed(hypervised),
          data.configs.filter((c) => c !== "native"), 160),
      misses: stacked(misses, "per", "TLB misses per 1000 instructions", "size", SIZES,
        ["#5b8c85", "#94c9a9", "#d9e8b0"], { cell: "misses", format: ",.3f" }),
      ...(data.memory && {
        refaults: data.memory.refaults.length > 1 && refaults(data.memory.refaults),
        sets: data.memory.sets.length > 1 && sets(data.memory.sets),
      }),
      exits: REASONS.length && stacked(exits, "count", "exits, count", "reason", REASONS,
        REASON_COLOURS, { cell: "exits", format: ",", doc: true }),
    };
  };

  const draw = () => {
    const charts = {};
    for (const [id, spec] of Object.entries(specs())) {
      const place = document.getElementById(id);
      if (spec) {
        charts[id] = bifold.embed(place, spec);
      } else {
        (document.getElementById(id + "-part") || place).hidden = true;
      }
    }
    bifold.linked([charts.timeline, charts.strips, charts.cold].filter(Boolean));
  };
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
