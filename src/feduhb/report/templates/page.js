"use strict";
// Paper cannot be unfolded: whatever is folded is printed too, and folded again afterwards.
let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("details:not([open])")];
  for (const each of folded) each.open = true;
});
addEventListener("afterprint", () => { for (const each of folded) each.open = false; });

// Shows a chart's values beside the pointer; left and right do the same from the keyboard.
for (const figure of document.querySelectorAll("figure.chart")) {
  const plot = figure.querySelector(".plot"), svg = plot.querySelector("svg"), tip = plot.querySelector("output");
  const {head, series} = JSON.parse(figure.querySelector("script").textContent);
  const points = series.flatMap(each => each.points.map(
    ([x, y, text, at]) => ({x, y, text, at, name: each.name, colour: each.colour})));
  const columns = [...new Set(points.map(point => point.x))].sort((a, b) => a - b);
  const stops = head ? columns.map(x => points.filter(point => point.x === x)) : points.map(point => [point]);
  const {width, height} = svg.viewBox.baseVal;
  const marks = svg.appendChild(document.createElementNS(svg.namespaceURI, "g"));
  let now = -1;

  const add = (parent, name, text, colour) => {
    const made = parent.appendChild(document.createElement(name));
    made.textContent = text;
    if (colour) made.style.color = colour;
    return made;
  };
  const mark = (name, attributes) => {
    const made = marks.appendChild(document.createElementNS(svg.namespaceURI, name));
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  };
  const hide = () => { now = -1; tip.hidden = true; marks.replaceChildren(); };
  const show = place => {
    if (place === now || !stops[place]) return;
    now = place;
    tip.replaceChildren();
    marks.replaceChildren();
    const [first] = stops[place];
    if (head) {
      add(tip, "strong", first.at);
      mark("line", {x1: first.x, x2: first.x, y1: 0, y2: height - 30});
    }
    for (const point of stops[place]) {
      const row = add(tip, "span", "");
      if (point.name) { add(row, "i", "●", point.colour); row.append(` ${point.name}  `); }
      row.append(point.text);
      mark("circle", {cx: point.x, cy: point.y, r: 4, style: `stroke: ${point.colour}`});
    }
    tip.hidden = false;
    const right = first.x > width / 2;
    tip.style.left = right ? "auto" : `${100 * first.x / width + 3}%`;
    tip.style.right = right ? `${100 - 100 * first.x / width + 3}%` : "auto";
    tip.style.top = head ? "0" : `${Math.max(0, 100 * first.y / height - 20)}%`;
  };
  const follow = event => {
    const box = svg.getBoundingClientRect();
    const x = (event.clientX - box.left) * width / box.width, y = (event.clientY - box.top) * height / box.height;
    const far = stops.map(([point]) => head ? Math.abs(point.x - x) : Math.hypot(point.x - x, point.y - y));
    show(far.indexOf(Math.min(...far)));
  };
  plot.addEventListener("pointermove", follow);
  plot.addEventListener("pointerdown", follow);
  plot.addEventListener("pointerleave", hide);
  plot.addEventListener("blur", hide);
  plot.addEventListener("keydown", event => {
    if (event.key === "Escape") hide();
    const step = {ArrowRight: 1, ArrowLeft: -1}[event.key];
    if (!step) return;
    event.preventDefault();
    show(Math.min(stops.length - 1, Math.max(0, now + step)));
  });
}
