// The last operations of a rank: a bar each, a row for each stream.
import {h, row, svg, table} from "./dom.js";
import {bytes, duration, num} from "./text.js";

const WIDTH = 1200, LEFT = 95, LANE = 38, BAR = 22;

function color(op, ops) {
  return `op${ops.indexOf(op) % 8}`;
}

// As flight_view and flight_trace of the command line: what an epoch's end cut off ends where the
// next epoch begins.
function timed(dump) {
  const now = num(dump.now_steady_ns);
  const records = (dump.records || []).map((record) => ({
    ...record, epoch: num(record.epoch), step: num(record.step), enqueued: num(record.enqueued_steady_ns),
    started: num(record.started_steady_ns), done: num(record.done_steady_ns)}));
  for (const record of records) {
    record.over = record.epoch < num(dump.epoch) || record.epoch <= num(dump.failed_epoch);
    const later = records.find((other) => other.epoch > record.epoch);
    record.end = record.done || Math.max(record.over && later ? later.enqueued : now, record.started, record.enqueued);
    const what = record.started ? "running" : "waiting";
    record.state = record.done ? "done" : record.over ? `cut off, ${what}` : what;
  }
  return records;
}

const name = (record) => (record.unit ? `${record.op} ${record.unit}` : record.op);

// The wait is a thin bar below the other one, since several operations wait while one runs.
function bar(record, y, toX, ops) {
  const start = record.started || record.end;
  const tip = svg("title", {}, `${name(record)}: step ${record.step}, epoch ${record.epoch}, ${record.state}; ` +
    `waited ${duration(start - record.enqueued)}` +
    (record.started ? `, ran ${duration(record.end - record.started)}` : ""));
  const rect = (look, from, to, top, height) => svg("rect", {
    class: look, x: toX(from).toFixed(2), y: top, width: Math.max(toX(to) - toX(from), 0.75).toFixed(2), height});
  const cut = record.state.startsWith("cut off") ? " cut" : "";
  return svg("g", {}, tip, rect("wait", record.enqueued, start, y + BAR + 2, 4),
             record.started ? rect(color(record.op, ops) + cut, start, record.end, y, BAR) : null);
}

function bars(records) {
  const first = Math.min(...records.map((record) => record.enqueued));
  const last = Math.max(...records.map((record) => record.end));
  const toX = (ns) => LEFT + ((ns - first) / Math.max(last - first, 1)) * (WIDTH - LEFT - 4);
  const streams = [...new Set(records.map((record) => record.stream))].sort();
  const ops = [...new Set(records.map((record) => record.op))].sort();
  const lanes = streams.map((stream, i) => svg("g", {},
    svg("text", {x: 0, y: 10 + i * LANE + 15}, stream),
    records.filter((record) => record.stream === stream).map((record) => bar(record, 10 + i * LANE, toX, ops))));
  const height = 10 + streams.length * LANE + 18;
  const step = (last - first) / 4;
  const ticks = [0, 1, 2, 3, 4].map((i) => svg("text", {
    x: LEFT + (i / 4) * (WIDTH - LEFT - 4), y: height - 4, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle",
  }, i === 0 ? "0" : duration(i * step)));
  const key = (text, style) => h("span", {class: "key"},
    svg("svg", {width: 10, height: 10}, svg("rect", {class: style, width: 10, height: 10})), text);
  return h("figure", {class: "scroll", id: "timeline"},
    svg("svg", {width: WIDTH, height, role: "img", "aria-label": "operations over time"}, lanes, ticks),
    h("figcaption", {}, ops.map((op) => key(op, color(op, ops))), key("waits", "wait")));
}

// Operations of the newest `steps` steps; 0: all.
export function timeline(dump, steps) {
  const records = timed(dump);
  if (records.length === 0) return [h("p", {class: "quiet"}, "no operations yet")];
  const newest = Math.max(...records.map((record) => record.step));
  const shown = records.filter((record) => steps === 0 || record.step > newest - steps);
  const rows = records.slice(-20).reverse().map((record) => row([
    ["n", record.number || "0"], ["n", `${record.epoch}`], ["n", `${record.step}`], name(record),
    ["n", bytes(num(record.bytes))], record.stream,
    ["n", duration((record.started || record.end) - record.enqueued)],
    ["n", record.started ? duration(record.end - record.started) : "–"], record.state]));
  return [bars(shown), h("h2", {}, "Newest operations"),
          table(["#number", "#epoch", "#step", "operation", "#size", "stream", "#waited", "#ran", "state"], rows, "")];
}
