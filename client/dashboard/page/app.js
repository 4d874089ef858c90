// Asks the dashboard's process for news, and shows them.
import {h, morph} from "./dom.js";
import {JobHistory} from "./history.js";
import {clock, num, seconds} from "./text.js";
import * as views from "./views.js";

const POLL_MS = 600;
const ANSWER_MS = 9000;
const MAX_PAGES = 10;  // Of a hundred jobs.
const MAX_EVENTS = 1000;

const histories = new Map();
const state = {
  jobs: [], more_jobs: false, workers: [], events: [], saves: [], memory: null, job: null, rank: null,
  errors: {},  // By answer: why the newest one is missing.
  answered: 0,  // When the coordinator listed its jobs last.
  historyOf: (id) => histories.get(id) || new JobHistory(),
};

// "#/job/gpt/rank/1/3" is ["job", "gpt", "rank", "1", "3"].
function address() {
  try {
    return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  } catch {
    return [];  // Not what a link of this page says.
  }
}

async function get(path, parameters = {}) {
  let response;
  try {
    response = await fetch(`api/${path}?${new URLSearchParams(parameters)}`, {signal: AbortSignal.timeout(ANSWER_MS)});
  } catch {
    throw new Error("the dashboard's own process does not answer");
  }
  const reply = await response.json().catch(() => ({error: `the dashboard's process answered ${response.status}`}));
  if (!response.ok) throw new Error(reply.error || `the dashboard's process answered ${response.status}`);
  return reply;
}

// Keeps what `ask` returns; an error leaves what was known and is kept beside it.
async function keep(name, ask) {
  try {
    await ask();
    delete state.errors[name];
  } catch (error) {
    state.errors[name] = error.message;
  }
}

async function askJobs() {
  const jobs = [];
  let after = "";
  let pages = 0;
  do {
    const reply = await get("jobs", {after});
    jobs.push(...(reply.jobs || []));
    after = reply.next_after_job_id || "";
  } while (after !== "" && ++pages < MAX_PAGES);
  const now = Date.now();
  Object.assign(state, {jobs, more_jobs: after !== "", answered: now});
  const gone = new Set(histories.keys());
  for (const job of jobs) {
    gone.delete(job.job_id);
    remember(job, now);
  }
  // One that is not listed for want of pages is asked for by its view.
  if (!state.more_jobs) for (const id of gone) histories.delete(id);
}

function remember(job, now) {
  if (!histories.has(job.job_id)) histories.set(job.job_id, new JobHistory());
  histories.get(job.job_id).add(job, now);
}

async function askEvents() {
  const known = state.events.length === 0 ? 0 : num(state.events[state.events.length - 1].number);
  const reply = await get("events", {after: known});
  // A coordinator that started again begins with 1.
  if (num(reply.last_number) < known) state.events = [];
  else state.events = [...state.events, ...(reply.events || [])].slice(-MAX_EVENTS);
}

async function askJob(id) {
  if (state.jobs.some((job) => job.job_id === id)) {
    state.job = null;
    delete state.errors.job;
    return;
  }
  await keep("job", async () => {
    state.job = null;
    state.job = await get("job", {id});
    remember(state.job, Date.now());
  });
}

// Once for each view of a job: it stays the same until the job is created again.
async function askMemory(id) {
  const job = state.jobs.find((each) => each.job_id === id) || state.job;
  if (!job) return;  // Another view was opened meanwhile.
  const known = state.memory;
  if (known && known.job_id === id && num(known.generation) === num(job.generation)) return;
  await keep("memory", async () => { state.memory = await get("memory", {job: id}); });
}

async function refresh() {
  const [view, id, , rank] = address();
  await Promise.all([
    keep("jobs", askJobs),
    keep("workers", async () => { state.workers = (await get("workers")).workers || []; }),
    keep("events", askEvents),
  ]);
  if (view !== "job" || state.errors.jobs) return;
  await askJob(id);
  if (state.errors.job) return;  // Of an unknown job there is nothing else to ask.
  await Promise.all([
    keep("saves", async () => { state.saves = (await get("saves", {job: id})).saves || []; }),
    ...(rank === undefined ? [askMemory(id)] : [keep("rank", async () => { state.rank = await get("rank", {job: id, rank}); })]),
  ]);
}

function showTrouble(now) {
  const trouble = document.getElementById("trouble");
  const why = state.errors.jobs;
  trouble.hidden = why === undefined;
  document.body.classList.toggle("stale", why !== undefined);
  document.getElementById("clock").textContent = state.answered === 0 ? "" : clock(state.answered);
  trouble.textContent = "";
  if (why === undefined) return;
  const known = state.answered === 0 ? "" : ` Below is what it said ${seconds((now - state.answered) / 1000)} ago.`;
  trouble.textContent = `The coordinator does not answer: ${why}.${known}`;
}

function content(now) {
  const [view, id, sub, rank, steps] = address();
  if (view === "cluster") return views.cluster(state);
  if (view === "job" && sub === "rank") return views.rank(state, now, id, Number(rank), Number(steps ?? 3));
  if (view === "job") return views.job(state, now, id);
  return views.overview(state, now);
}

function show() {
  const now = Date.now();
  showTrouble(now);
  if (state.answered === 0) return;
  const view = h("main", {id: "view"}, content(state.errors.jobs === undefined ? now : state.answered));
  morph(document.getElementById("view"), view);
}

let turn = 0;

async function poll() {
  const own = ++turn;  // A newer one takes over.
  const begun = Date.now();
  await refresh();
  if (own !== turn) return;
  show();
  setTimeout(() => own === turn && poll(), Math.max(0, POLL_MS - (Date.now() - begun)));
}

window.addEventListener("hashchange", () => {
  Object.assign(state, {saves: [], memory: null, rank: null, job: null});
  for (const name of ["saves", "memory", "rank", "job"]) delete state.errors[name];
  show();
  poll();
});
poll();
