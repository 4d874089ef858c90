// What polls have shown of a job, for lines and rates: at most MAX_POINTS, in this page alone.
import {num} from "./text.js";

const MAX_POINTS = 3000;  // Half an hour.
const RATE_MS = 5000;
const SHARE_MS = 10000;
const STILL_MS = 2000;  // Ranks that stay where they are for less only run at different speeds.

export const ranksOf = (job) =>
  Array.from({length: num(job.config && job.config.world_size)}, (_, rank) => rank);
export const statusOf = (job, rank) => (job.ranks && job.ranks[rank]) || {};
export const attachedOf = (job) => ranksOf(job).filter((rank) => statusOf(job, rank).attached).length;

const place = (status) => [num(status.step), num(status.pass), num(status.sequence)];
function compare(a, b) {
  const differs = a.findIndex((value, i) => value !== b[i]);
  return differs < 0 ? 0 : a[differs] - b[differs];
}

// The mean of each number over the ranks that report it.
function means(job) {
  const sums = new Map();
  for (const rank of ranksOf(job)) {
    for (const [name, value] of Object.entries(statusOf(job, rank).reported || {})) {
      const sum = sums.get(name) || {total: 0, count: 0};
      sums.set(name, {total: sum.total + Number(value), count: sum.count + 1});
    }
  }
  return new Map([...sums].sort().map(([name, {total, count}]) => [name, total / count]));
}

export class JobHistory {
  generation = undefined;
  points = [];  // {time, step, rate, norm, means}
  ranks = new Map();  // {place, since, computed: [{time, seconds}]}

  add(job, time) {
    if (job.generation !== this.generation) {
      this.generation = job.generation;
      this.points = [];
      this.ranks.clear();
    }
    for (const rank of ranksOf(job)) this.addRank(rank, job, time);
    if (this.last && job.state !== "JOB_STATE_RUNNING") return;  // Its line stands still.
    const step = num(job.committed_step);
    const norms = ranksOf(job).map((rank) => num(statusOf(job, rank).gradient_norm));
    this.points.push({time, step, rate: this.rate(step, time), norm: norms.find((norm) => norm !== 0),
                      means: means(job)});
    if (this.points.length > MAX_POINTS) this.points.shift();
  }

  addRank(rank, job, time) {
    const status = statusOf(job, rank);
    const now = [num(job.epoch), ...place(status)];
    const known = this.ranks.get(rank) || {place: [], since: time, computed: []};
    if (compare(now, known.place) !== 0) Object.assign(known, {place: now, since: time});
    const spent = num(status.compute_seconds);
    const last = known.computed[known.computed.length - 1];
    if (last && spent < last.seconds) known.computed = [];
    // Heartbeats bring it, not each poll.
    if (!last || spent !== last.seconds) known.computed.push({time, seconds: spent});
    while (known.computed.length > 2 && known.computed[0].time < time - SHARE_MS) known.computed.shift();
    this.ranks.set(rank, known);
  }

  rate(step, time) {
    const from = this.points.find((point) => point.time >= time - RATE_MS);
    if (!from || step < from.step || time - from.time < 500) return NaN;
    return (1000 * (step - from.step)) / (time - from.time);
  }

  get last() {
    return this.points[this.points.length - 1];
  }
  line(value) {
    return this.points.map((point) => ({x: point.time, y: value(point) ?? NaN}));
  }
  // The part of its time that the trainer of `rank` has computed.
  share(rank) {
    const computed = (this.ranks.get(rank) || {computed: []}).computed;
    if (computed.length < 2) return NaN;
    const first = computed[0], last = computed[computed.length - 1];
    return Math.min(1, (1000 * (last.seconds - first.seconds)) / (last.time - first.time));
  }

  // Who waits for whom: ranks without a trainer, or, when no rank has moved for a while, those that
  // have come least far. seconds: since when.
  waits(job, time) {
    const none = {missing: [], waiting: [], seconds: 0};
    if (job.state !== "JOB_STATE_RUNNING") return none;
    const ranks = ranksOf(job);
    const absent = ranks.filter((rank) => !statusOf(job, rank).attached);
    const since = Math.max(...ranks.map((rank) => (this.ranks.get(rank) || {since: time}).since));
    let missing = absent;
    if (absent.length === 0) {
      if (time - since < STILL_MS) return none;
      const places = ranks.map((rank) => place(statusOf(job, rank)));
      const least = places.reduce((a, b) => (compare(b, a) < 0 ? b : a), places[0]);
      missing = ranks.filter((rank) => compare(places[rank], least) === 0);
      if (missing.length === ranks.length) return none;
    }
    const waiting = ranks.filter((rank) => !missing.includes(rank) && (statusOf(job, rank).doing || "idle") !== "idle");
    return {missing, waiting, seconds: (time - since) / 1000};
  }
}
