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

  const bars = ({ unit, bars }) => {
    const names = bars.map((b) => b.name);
    const y = { field: "name", type: "nominal", sort: names, title: null, axis: { labelLimit: bifold.narrow() ? 140 : 420, grid: false } };
    const tooltip = [{ field: "name", title: "change" }, ...["value", "low", "high"].map((field) =>
      ({ field, type: "quantitative", format: "+.2f", title: field === "value" ? unit : field }))];
    return { ...bifold.base(), height: { step: 30 }, data: { values: bars }, layer: [
      { mark: { type: "bar", height: 16 }, encoding: { y, tooltip, x: { field: "value", type: "quantitative", title: unit },
        color: { condition: { test: "datum.value < 0", value: COLOURS[1] }, value: COLOURS[0] } } },
      { mark: { type: "rule", color: css("--soft") }, encoding: { y, tooltip, x: { field: "low", type: "quantitative" }, x2: { field: "high" } } },
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
