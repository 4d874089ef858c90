// What each address of the page shows, from the newest answers.
import {chart, sparkline} from "./charts.js";
import {facts, h, row, table} from "./dom.js";
import {attachedOf, ranksOf, statusOf} from "./history.js";
import {bytes, clock, figure, num, plain, seconds} from "./text.js";
import {timeline} from "./timeline.js";

const MAX_CHARTS = 12;
const SILENT_MS = 1300;  // Heartbeats come each second.

const GOOD = ["RUNNING", "COMPLETED"];
const BUSY = ["WAITING", "STARTING", "HANDED_OVER"];

const jobAddress = (id) => `#/job/${encodeURIComponent(id)}`;
const jobLink = (id) => h("a", {href: jobAddress(id)}, id);
const problem = (text) => h("p", {class: "bad"}, text);

function stateOf(job) {
  const state = plain(job.state, "JOB_STATE_");
  const look = GOOD.includes(state) ? "good" : BUSY.includes(state) ? "busy" : "bad";
  return h("span", {class: `state ${look}`}, state);
}

function fakeNote(job) {
  const config = job.config || {};
  return config.fake_all_gather || config.fake_reduce_scatter ? ", TRAINS NOTHING: fake collectives" : "";
}

// The loss, or else the first number that the trainers report.
function shownValue(history) {
  const names = history.last ? [...history.last.means.keys()] : [];
  const name = names.includes("loss") ? "loss" : names[0];
  return name === undefined ? "–" : h("span", {class: "t"},
    sparkline(history.line((point) => point.means.get(name))), " ",
    name === "loss" ? "" : `${name} `, figure(history.last.means.get(name)));
}

const rateText = (history) => (history.last && Number.isFinite(history.last.rate) ? figure(history.last.rate) : "–");

function waitText(history, job, now) {
  const {missing, seconds: waited} = history.waits(job, now);
  if (missing.length === 0) return "";
  const names = missing.length > 8 ? `${missing.length} ranks` : `rank ${missing.join(", ")}`;
  const what = missing.every((rank) => !statusOf(job, rank).attached) ? `${names}: no trainer` : `waits for ${names}`;
  return waited >= 1 ? `${what}, for ${seconds(waited)}` : what;
}

function jobsTable(state, now) {
  const rows = state.jobs.map((job) => {
    const history = state.historyOf(job.job_id);
    const waits = waitText(history, job, now);
    return row([
      jobLink(job.job_id), stateOf(job), ["n", String(num(job.committed_step))], ["n", rateText(history)],
      shownValue(history), ["n", `${attachedOf(job)} of ${ranksOf(job).length}`], ["n", String(num(job.epoch))],
      [waits, job.state_reason].filter(Boolean).join("; ") + fakeNote(job),
    ], {"data-job": job.job_id, class: waits ? "waits" : null});
  });
  const note = state.more_jobs ? h("p", {class: "quiet"}, `Only the first ${rows.length} jobs are shown.`) : null;
  return [table(["job", "state", "#step", "#steps/s", "loss", "#ranks attached", "#epoch", "reason"], rows, "no jobs"), note];
}

function workerState(worker) {
  const silent = num(worker.silent_ms);
  const heard = `heard of ${seconds(silent / 1000)} ago`;
  if (worker.lost) return [h("span", {class: "state bad"}, "LOST"), `, ${heard}`];
  if (silent >= SILENT_MS) return [h("span", {class: "state busy"}, "silent"), `, ${heard}`];
  return [h("span", {class: "state good"}, "live"), `, ${heard}`];
}

function memoryOf(worker) {
  const all = num(worker.memory_bytes), claimed = num(worker.claimed_memory_bytes);
  if (all === 0) return "not told";
  return [h("meter", {min: 0, max: all, value: claimed}), ` ${bytes(claimed)} of ${bytes(all)}`];
}

// "gpt: 0, 1; bert: 3"
function ranksOn(worker, jobs) {
  return jobs.map((job) => {
    const ranks = (job.placements || []).filter((place) => place.worker_id === worker.worker_id).map((place) => num(place.rank));
    return ranks.length === 0 ? null : `${job.job_id}: ${ranks.length > 16 ? `${ranks.length} ranks` : ranks.sort((a, b) => a - b).join(", ")}`;
  }).filter(Boolean).join("; ");
}

function workersTable(state, {detailed}) {
  if (state.errors.workers) return problem(state.errors.workers);
  const rows = state.workers.map((worker) => row([
    worker.worker_id, h("span", {class: "t"}, workerState(worker)), ["n", String(num(worker.num_devices))], worker.device || "host",
    h("span", {class: "t"}, memoryOf(worker)), ranksOn(worker, state.jobs),
    ...(detailed ? [worker.address || "", worker.data_host || "–", ["n", worker.incarnation || "0"]] : []),
  ], {"data-worker": worker.worker_id}));
  return table(["worker", "state", "#devices", "device", "memory that jobs have", "ranks",
                ...(detailed ? ["address", "data host", "#incarnation"] : [])], rows, "no workers");
}

const LOOKS = {EVENT_SEVERITY_WARNING: "busy", EVENT_SEVERITY_ERROR: "bad"};

function eventsTable(state, events, empty) {
  if (state.errors.events) return problem(state.errors.events);
  const rows = events.slice().reverse().map((event) => row([
    ["t", clock(num(event.time_unix_ms))],
    h("span", {class: `t ${LOOKS[event.severity] || ""}`}, plain(event.kind, "EVENT_KIND_").replaceAll("_", " ")),
    event.job_id ? jobLink(event.job_id) : "",
    num(event.rank) < 0 ? "" : String(num(event.rank)),
    event.worker_id || "", ["n", event.epoch || ""], event.text || "",
  ]));
  return table(["time", "event", "job", "rank", "worker", "#epoch", "what happened"], rows, empty);
}

export function overview(state, now) {
  return [h("h1", {}, "Jobs"), jobsTable(state, now), h("h2", {}, "Workers"), workersTable(state, {detailed: false}),
          h("h2", {}, "Newest events"), eventsTable(state, state.events.slice(-10), "no events")];
}

export function cluster(state) {
  return [h("h1", {}, "Workers"), workersTable(state, {detailed: true}),
          h("h2", {}, "Events"), eventsTable(state, state.events.slice(-200), "no events")];
}

const workerOf = (job, rank) => ((job.placements || []).find((place) => num(place.rank) === rank) || {}).worker_id;

function jobCharts(history) {
  const names = history.last ? [...history.last.means.keys()] : [];
  const ordered = names.includes("loss") ? ["loss", ...names.filter((name) => name !== "loss")] : names;
  const charts = ordered.slice(0, MAX_CHARTS).map((name) =>
    chart(name, history.line((point) => point.means.get(name)), `${figure(history.last.means.get(name))}, mean of ranks`));
  const norms = history.line((point) => point.norm);
  if (norms.some(({y}) => Number.isFinite(y))) charts.splice(1, 0, chart("gradient norm", norms, figure(history.last.norm ?? 0)));
  charts.push(chart("steps per second", history.line((point) => point.rate), rateText(history)));
  return h("div", {class: "charts"}, charts);
}

function doingText(state, job, rank, waits) {
  const status = statusOf(job, rank);
  const worker = workerOf(job, rank);
  if (state.workers.some((each) => each.lost && each.worker_id === worker)) return "its worker is lost";
  if (!status.attached) return job.state === "JOB_STATE_COMPLETED" ? "done" : "no trainer";
  if (waits.missing.includes(rank)) return status.doing && status.doing !== "idle" ? `others wait for it: ${status.doing}` : "others wait for it; it waits for its trainer";
  if (waits.waiting.includes(rank)) {
    const whom = waits.missing.length > 8 ? `${waits.missing.length} ranks` : `rank ${waits.missing.join(", ")}`;
    return `${status.doing}: waits for ${whom}`;
  }
  return !status.doing || status.doing === "idle" ? "waits for its trainer" : status.doing;
}

function ranksTable(state, job, history, now) {
  const waits = history.waits(job, now);
  const places = new Map((job.placements || []).map((place) => [num(place.rank), place]));
  const rows = ranksOf(job).map((rank) => {
    const status = statusOf(job, rank);
    const place = places.get(rank);
    const share = history.share(rank);
    const look = waits.missing.includes(rank) ? "missing" : waits.waiting.includes(rank) ? "waits" : null;
    return row([
      ["n", h("a", {href: `${jobAddress(job.job_id)}/rank/${rank}`}, String(rank))], place ? place.worker_id || "" : "?",
      ["n", place ? String(num(place.device)) : "–"], ["n", String(num(status.step))], ["n", String(num(status.sequence))],
      doingText(state, job, rank, waits),
      Number.isFinite(share) ? h("span", {class: "t"}, h("meter", {min: 0, max: 1, value: share.toFixed(3)}), ` ${Math.round(100 * share)} %`) : "–",
      ["n", bytes(num(status.parameter_bytes))], ["n", bytes(num(status.gradient_bytes))], ["n", bytes(num(status.optimizer_bytes))],
      Object.entries(status.reported || {}).sort().map(([name, value]) => `${name} ${figure(Number(value))}`).join(", "),
    ], {"data-rank": rank, class: look});
  });
  return table(["#rank", "worker", "#device", "#step", "#operation", "what it does", "trainer computes", "#parameters",
                "#gradients", "#optimizer", "reports"], rows, "no ranks");
}

function saveOutcome(save) {
  if (save.state === "SAVE_STATE_WAITING") return `waits for ${save.waits_for || "the next step"}`;
  if (save.state === "SAVE_STATE_SAVING") return `${bytes(num(save.written_bytes))} of ${bytes(num(save.all_bytes))} written`;
  if (num(save.code) !== 0) return h("span", {class: "bad"}, `failed: ${save.message || save.code}`);
  return plain(save.fate, "SAVE_FATE_").toLowerCase();
}

function savesTable(state) {
  if (state.errors.saves) return problem(state.errors.saves);
  const rows = state.saves.slice(0, 50).map((save) => row([
    ["n", String(num(save.step))], saveOutcome(save), (save.spec && save.spec.path) || "",
    ["n", save.size_bytes ? bytes(num(save.size_bytes)) : ""], ["n", save.took_ms ? seconds(num(save.took_ms) / 1000) : ""],
    ["t", save.ended_unix_ms ? clock(num(save.ended_unix_ms)) : ""],
  ]));
  return table(["#step", "state", "path", "#size", "#took", "ended"], rows, "no checkpoints");
}

function memoryTable(state, job) {
  const memory = state.memory;
  if (!memory || memory.job_id !== job.job_id) {
    return state.errors.memory ? problem(state.errors.memory) : h("p", {class: "quiet"}, "Loading.");
  }
  const sizes = (of) => [["n", num(of.num_elements).toLocaleString("en")], ["n", bytes(num(of.parameter_bytes))],
                         ["n", bytes(num(of.gradient_bytes))], ["n", bytes(num(of.optimizer_bytes))]];
  const rows = memory.units.map((unit) => row([unit.name, unit.dtype, unit.strategy, ...sizes(unit)], {"data-unit": unit.name}));
  const left = num(memory.num_units) - rows.length;
  const last = row([left > 0 ? `all ${memory.num_units} units` : "all units", "", "", ...sizes(memory.total)], {id: "all-units"});
  return [table(["unit", "dtype", "strategy", "#elements", "#parameters", "#gradients", "#optimizer"], [...rows, last], "no units"),
          left > 0 ? h("p", {class: "quiet", id: "more-units"}, `The ${rows.length} largest units are shown; there are ${left} more.`) : null];
}

const enumText = (value, prefix) => (value ? plain(value, prefix) : null);

function jobFacts(job, history) {
  const config = job.config || {};
  const fact = (name, value) => (value ? [name, value] : null);
  return facts([
    ["state", stateOf(job)], ["step", String(num(job.committed_step))], ["steps/s", rateText(history)],
    ["epoch", String(num(job.epoch))], ["ranks attached", `${attachedOf(job)} of ${ranksOf(job).length}`],
    fact("strategy", enumText(config.strategy, "STRATEGY_")),
    fact("compute", enumText(config.compute_dtype, "DTYPE_")),
    fact("optimizer", config.optimizer && enumText(config.optimizer.kind, "OPTIMIZER_KIND_")),
    fact("owner", job.owner),
  ]);
}

function withJob(state, id, show) {
  const job = state.jobs.find((each) => each.job_id === id) || state.job;
  if (job && job.job_id === id) return show(job);
  return [h("h1", {}, id), state.errors.job ? problem(state.errors.job) : h("p", {class: "quiet"}, "Loading.")];
}

export function job(state, now, id) {
  return withJob(state, id, (found) => {
    const history = state.historyOf(id);
    const waits = waitText(history, found, now);
    return [
      h("h1", {}, id), jobFacts(found, history),
      found.state_reason ? h("p", {class: "quiet", id: "reason"}, found.state_reason) : null,
      fakeNote(found) ? problem(fakeNote(found).slice(2)) : null,
      waits ? h("p", {class: "busy", id: "waits"}, waits) : null,
      jobCharts(history), h("h2", {}, "Ranks"), ranksTable(state, found, history, now),
      h("h2", {}, "Checkpoints"), savesTable(state), h("h2", {}, "Memory of a rank by unit"), memoryTable(state, found), h("h2", {}, "Epochs and events"),
      eventsTable(state, state.events.filter((event) => event.job_id === id).slice(-100), "no events"),
    ];
  });
}

const SPANS = [1, 3, 10, 0];

export function rank(state, now, id, number, steps) {
  return withJob(state, id, (found) => {
    const base = `${jobAddress(id)}/rank/${number}`;
    const query = `job=${encodeURIComponent(id)}&rank=${number}`;
    const spans = SPANS.map((span) => {
      const text = span === 0 ? "all" : span === 1 ? "last step" : `last ${span} steps`;
      return h("span", {class: "key"}, span === steps ? h("b", {}, text) : h("a", {href: `${base}/${span}`}, text));
    });
    const status = statusOf(found, number);
    const head = [h("h1", {}, jobLink(id), ` rank ${number}`),
                  facts([["step", String(num(status.step))],
                         ["what it does", doingText(state, found, number, state.historyOf(id).waits(found, now))],
                         status.executor_pid ? ["executor's process", String(status.executor_pid)] : null])];
    if (state.errors.rank) return [...head, h("h2", {}, "Operations"), problem(state.errors.rank)];
    if (!state.rank || state.rank.job_id !== id || num(state.rank.rank) !== number) return [...head, h("p", {class: "quiet"}, "Loading.")];
    return [...head, h("h2", {}, "Operations"),
            h("p", {}, spans, h("a", {href: `api/trace?${query}`, download: ""}, "download for Perfetto")),
            timeline(state.rank, steps)];
  });
}
