// Draws a page's charts: curves over one time axis, with marked times as thin lines.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const css = bifold.css;
  // Eight colours that differ on light and dark backgrounds; further curves repeat them dashed.
  const COLOURS = ["#2f6fb3", "#d9772b", "#2e9e6b", "#b5489a", "#8a7bd1", "#c9a227", "#4fb3c8", "#c0504d"];
  const end = Math.max(1, ...data.charts.flatMap((c) => c.curves.flatMap((k) => k[1].map((p) => p[0]))));
  const unit = end > 7200 ? { name: "min", by: 60 } : { name: "s", by: 1 };

  const spec = (chart) => {
    const names = chart.curves.map((c) => c[0]);
    const values = chart.curves.flatMap(([name, points]) =>
      points.map(([t, y]) => ({ name, t: t / unit.by, y })));
    const zoom = { name: "zoom", select: { type: "interval", encodings: ["x"] }, bind: "scales" };
    const x = { field: "t", type: "quantitative", title: "time, " + unit.name,
      axis: { grid: false, tickCount: bifold.narrow() ? 5 : 12 }, scale: { nice: false, domain: [0, end / unit.by] } };
    const line = {
      data: { values },
      params: [zoom, { name: "picked", select: { type: "point", fields: ["name"] }, bind: "legend" }],
      mark: { type: "line", strokeWidth: 1.8, clip: true },
      encoding: {
        x,
        y: { field: "y", type: "quantitative", title: chart.unit, axis: { tickCount: 5, minExtent: 60 } },
        color: { field: "name", type: "nominal", sort: names, title: null,
          scale: { domain: names, range: names.map((_, i) => COLOURS[i % COLOURS.length]) },
          legend: names.length > 1 ? { symbolType: "stroke", symbolStrokeWidth: 3, symbolSize: 300, columns: bifold.narrow() ? 2 : 5 } : null },
        strokeDash: { field: "name", type: "nominal", sort: names, legend: null,
          scale: { domain: names, range: names.map((_, i) => (i < COLOURS.length ? [1, 0] : [5, 3])) } },
        opacity: { condition: { param: "picked", value: 1 }, value: 0.12 },
        tooltip: [
          { field: "name", title: "curve" },
          { field: "t", type: "quantitative", format: ",.1f", title: "time, " + unit.name },
          { field: "y", type: "quantitative", format: ",.1f", title: chart.unit },
        ],
      },
    };
    const marks = {
      data: { values: data.marks.map(([t, word]) => ({ t: t / unit.by, word })) },
      mark: { type: "rule", strokeDash: [3, 3], stroke: css("--soft"), clip: true },
      encoding: { x: { ...x }, tooltip: [{ field: "word", title: "mark" }] },
    };
    return { ...bifold.base(), height: 190, layer: data.marks.length ? [line, marks] : [line] };
  };

  // A loss that is far larger than the gains is cut off, so that small gains stay in sight; its value stands beside the bar.
  const bars = ({ unit, bars }) => {
    const names = bars.map((b) => b.name);
    const sizes = bars.map((b) => Math.abs(b.value)).sort((a, b) => a - b);
    const cap = 3 * Math.max(0.1, sizes[sizes.length >> 1] || 0, ...bars.map((b) => b.value));
    const cut = (v) => Math.max(-cap, Math.min(cap, v));
    const number = (v) => (v < 0 ? "\u2212" : "+") + Math.abs(v).toFixed(2);
    const values = bars.map((b) => ({ ...b, zero: 0, to: cut(b.value), from_band: cut(b.low), to_band: cut(b.high),
      right: Math.max(0, cut(b.value), cut(b.high)), text: (b.value < -cap ? "\u25c2 " : "") + number(b.value) }));
    const most = Math.max(...values.map((v) => v.right));
    const least = Math.min(0, ...values.map((v) => Math.min(v.to, v.from_band)));
    const y = { field: "name", type: "nominal", sort: names, title: null, axis: { labelLimit: bifold.narrow() ? 140 : 420, grid: false } };
    const tooltip = [{ field: "name", title: "change" }, ...["value", "low", "high"].map((field) =>
      ({ field, type: "quantitative", format: "+.2f", title: field === "value" ? unit : field }))];
    // Room for the number behind the longest bar.
    const domain = [least, most + (most - least) * (bifold.narrow() ? 0.35 : 0.12)];
    return { ...bifold.base(), height: { step: 30 }, data: { values }, layer: [
      { mark: { type: "bar", height: 16 }, encoding: { y, tooltip,
        x: { field: "zero", type: "quantitative", title: unit, scale: { domain, nice: false }, axis: { tickCount: bifold.narrow() ? 4 : 8 } },
        x2: { field: "to" },
        color: { condition: { test: "datum.value < 0", value: COLOURS[1] }, value: COLOURS[0] } } },
      { mark: { type: "rule", color: css("--soft") },
        encoding: { y, tooltip, x: { field: "from_band", type: "quantitative" }, x2: { field: "to_band" } } },
      { mark: { type: "text", align: "left", dx: 6, fontSize: 12, color: css("--ink") },
        encoding: { y, x: { field: "right", type: "quantitative" }, text: { field: "text" } } },
    ] };
  };

  const draw = () => {
    if (data.bars) bifold.embed(document.getElementById("bars"), bars(data.bars));
    bifold.linked(data.charts.map((chart, i) =>
      bifold.embed(document.getElementById("chart-" + i), spec(chart))));
  };
  draw();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
})();
