// Lines over time. Values that are not finite are gaps.
import {svg, h} from "./dom.js";
import {figure, seconds} from "./text.js";

// Runs of neighbours with finite values, as texts of points. At most two points a column, its least
// and its largest value, however many there are.
function runs(points, width, toX, toY) {
  const found = [];
  let run = [];
  let column = null;
  const endColumn = () => {
    if (column !== null) run.push(...(column.least === column.most ? [column.least] : [column.least, column.most]));
    column = null;
  };
  for (const point of points) {
    if (!Number.isFinite(point.y)) {
      endColumn();
      if (run.length > 0) found.push(run);
      run = [];
      continue;
    }
    const x = Math.round(toX(point.x));
    if (column !== null && column.x !== x) endColumn();
    if (column === null) column = {x, least: point, most: point};
    if (point.y < column.least.y) column.least = point;
    if (point.y > column.most.y) column.most = point;
  }
  endColumn();
  if (run.length > 0) found.push(run);
  return found.map((r) => r.map((p) => `${toX(p.x).toFixed(1)},${toY(p.y).toFixed(1)}`).join(" "));
}

function bounds(points) {
  const finite = points.filter((point) => Number.isFinite(point.y));
  if (finite.length < 2) return null;
  let least = Infinity, most = -Infinity;
  for (const {y} of finite) {
    least = Math.min(least, y);
    most = Math.max(most, y);
  }
  const first = points[0].x, last = points[points.length - 1].x;
  return last > first ? {least, most, first, last} : null;
}

function lines(points, box, width, height, top, bottom) {
  const toX = (x) => 1 + ((x - box.first) / (box.last - box.first)) * (width - 2);
  const span = box.most - box.least;
  const toY = (y) => top + (span === 0 ? 0.5 : (box.most - y) / span) * (height - top - bottom - 3) + 1;
  return runs(points, width, toX, toY).map((run) => svg("polyline", {class: "line", points: run}));
}

// Within a line of text.
export function sparkline(points, width = 120, height = 20) {
  const box = bounds(points);
  const drawn = box === null ? [] : lines(points, box, width, height, 0, 0);
  return svg("svg", {class: "spark", width, height, "aria-hidden": "true"}, drawn);
}

// `points`: {x: milliseconds, y: value}. `newest`: the last value, as text.
export function chart(name, points, newest, width = 280, height = 105) {
  const box = bounds(points);
  const drawn = box === null
    ? [svg("text", {x: 4, y: height / 2}, "not enough values yet")]
    : [svg("line", {class: "axis", x1: 0, y1: height - 1, x2: width, y2: height - 1}),
       ...lines(points, box, width, height, 14, 14),
       svg("text", {x: 2, y: 10}, figure(box.most)),
       svg("text", {x: 2, y: height - 4}, figure(box.least)),
       svg("text", {x: width - 2, y: height - 4, "text-anchor": "end"},
           `last ${seconds((box.last - box.first) / 1000)}`)];
  return h("figure", {"data-chart": name},
           h("figcaption", {}, h("b", {}, name), ` ${newest}`),
           svg("svg", {width, height, role: "img", "aria-label": `${name} over time`}, drawn));
}
