// Draws a program's charts when its part of the page is opened, because drawing thirty programs at once
// keeps a browser busy for long.
(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("data").textContent);
  const draw = (i) => {
    const { strips, curves } = data[i];
    const x = bifold.unit(strips.end);
    const names = curves.map((c) => c.name);
    const values = curves.flatMap((c) => {
      const points = c.points.map((overhead, k) =>
        ({ config: c.name, from: k * strips.step * x.factor, overhead }));
      // A step line needs the end of its last step.
      const last = points[points.length - 1];
      return last ? points.concat({ ...last, from: strips.end * x.factor }) : points;
    });
    bifold.linked([
      bifold.embed(document.getElementById("curves-" + i), bifold.curves({
        field: "overhead", title: "overhead, % of the ideal run", values, names, colour: bifold.colour,
        height: 150, x, end: strips.end, aligned: true,
      })),
      bifold.embed(document.getElementById("strips-" + i), bifold.strips(strips, x)),
    ]);
  };
  const parts = [...document.querySelectorAll("details.program")];
  parts.forEach((part, i) => {
    const first = () => { if (part.open && !part.dataset.drawn) { part.dataset.drawn = "yes"; draw(i); } };
    part.addEventListener("toggle", first);
    first();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    parts.forEach((part, i) => { if (part.dataset.drawn) draw(i); });
  });
})();
