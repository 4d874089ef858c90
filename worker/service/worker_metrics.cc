#include "worker/service/worker_metrics.h"

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "net/metrics_text.h"
#include "shm/control_page.h"
#include "shm/rank_totals.h"
#include "worker/keeper/hosted_job.h"
#include "worker/keeper/save_counts.h"

namespace tessera {
namespace {

struct RankMetrics {
  MetricsText::Labels labels;
  v1::RankStatus status;
  RankSums sums;
  RankCounts counts;
  std::string via;
};

// By what ranks of the job reach each other.
std::string ViaOf(const HostedJob& job) {
  if (job.local().spans_workers()) return "tcp";
  return job.regions().state_on_host() ? "shm" : "gpu";
}

std::vector<RankMetrics> RanksOf(const std::vector<std::shared_ptr<HostedJob>>& jobs) {
  std::vector<RankMetrics> ranks;
  for (const std::shared_ptr<HostedJob>& job : jobs) {
    const v1::JobProgress progress = job->Progress();
    for (const auto& [rank, status] : progress.ranks()) {
      ranks.push_back({{{"job_id", progress.job_id()}, {"rank", absl::StrCat(rank)}},
                       status,
                       Sum(job->regions().flight(Rank(rank)).totals),
                       job->Counts(Rank(rank)),
                       ViaOf(*job)});
    }
  }
  return ranks;
}

MetricsText::Labels With(MetricsText::Labels labels, absl::string_view name, std::string value) {
  labels.emplace_back(name, std::move(value));
  return labels;
}

void AddStates(const std::vector<RankMetrics>& ranks, MetricsText* metrics) {
  metrics->Gauge("tessera_rank_step", "The step that the rank works on.");
  for (const RankMetrics& rank : ranks) metrics->Value(rank.labels, rank.status.step());
  metrics->Gauge("tessera_rank_attached", "1 while the rank has a trainer.");
  for (const RankMetrics& rank : ranks) metrics->Value(rank.labels, rank.status.attached());
  metrics->Gauge("tessera_rank_memory_bytes", "Memory of the rank.");
  for (const RankMetrics& rank : ranks) {
    metrics->Value(With(rank.labels, "kind", "parameters"), rank.status.parameter_bytes());
    metrics->Value(With(rank.labels, "kind", "gradients"), rank.status.gradient_bytes());
    metrics->Value(With(rank.labels, "kind", "optimizer"), rank.status.optimizer_bytes());
  }
  metrics->Gauge("tessera_gradient_norm", "Norm of the gradient of the rank's last step.");
  for (const RankMetrics& rank : ranks) metrics->Value(rank.labels, rank.sums.gradient_norm);
  metrics->Gauge("tessera_training_value", "What the rank's trainer reported last.");
  for (const RankMetrics& rank : ranks) {
    for (const auto& [name, value] : rank.status.reported())
      metrics->Value(With(rank.labels, "name", name), value);
  }
}

void AddCounts(const std::vector<RankMetrics>& ranks, MetricsText* metrics) {
  metrics->Counter("tessera_executor_starts_total",
                   "Starts of the rank's executor: the first one, or after another one ended.");
  for (const RankMetrics& rank : ranks) {
    const int64_t starts = rank.counts.executor_starts;
    metrics->Value(With(rank.labels, "cause", "first"), starts > 0);
    metrics->Value(With(rank.labels, "cause", "again"), starts > 0 ? starts - 1 : 0);
  }
  metrics->Counter("tessera_trainer_deaths_total", "Trainers of the rank that died.");
  for (const RankMetrics& rank : ranks) metrics->Value(rank.labels, rank.counts.trainer_deaths);
}

void AddCheckpoints(const std::vector<RankMetrics>& ranks, MetricsText* metrics) {
  metrics->Histogram("tessera_checkpoint_seconds",
                     "Time of a checkpoint that the rank took part in, until all ranks had saved.");
  for (const RankMetrics& rank : ranks) {
    const SaveCounts& saves = rank.counts.saves;
    metrics->Buckets(rank.labels, SaveCounts::kBounds_s, saves.counts, saves.sum_s);
  }
  metrics->Counter("tessera_checkpoint_bytes_total", "Bytes of those that the rank wrote.");
  for (const RankMetrics& rank : ranks)
    metrics->Value(rank.labels, rank.counts.saves.written_bytes);
}

// One metric of all operations of all ranks.
void AddOperations(const std::vector<RankMetrics>& ranks, MetricsText* metrics,
                   double (*value)(const RankSums::Operation&)) {
  for (const RankMetrics& rank : ranks) {
    for (uint32_t kind = 0; kind < kCountedKinds; ++kind) {
      const RankSums::Operation& operation = rank.sums.operations[kind];
      // A series for each operation of each rank would be many, most of them zero for ever.
      if (operation.done == 0) continue;
      const std::string op = kind == 0 ? "other" : OpName(static_cast<OpKind>(kind));
      metrics->Value(With(rank.labels, "op", op), value(operation));
    }
  }
}

void AddTimes(const std::vector<RankMetrics>& ranks, MetricsText* metrics) {
  metrics->Counter("tessera_operations_total", "Operations that the rank has done.");
  AddOperations(ranks, metrics, [](const RankSums::Operation& op) { return double(op.done); });
  metrics->Counter("tessera_operation_wait_seconds_total", "From submission to start.");
  AddOperations(ranks, metrics, [](const RankSums::Operation& op) { return op.wait_ns / 1e9; });
  metrics->Counter("tessera_operation_run_seconds_total",
                   "From start to end, with the wait for other ranks.");
  AddOperations(ranks, metrics, [](const RankSums::Operation& op) { return op.run_ns / 1e9; });
  metrics->Counter("tessera_bytes_total", "Bytes of operations that the rank has done.");
  for (const RankMetrics& rank : ranks) {
    for (uint32_t kind = 1; kind < kCountedKinds; ++kind) {
      const RankSums::Operation& operation = rank.sums.operations[kind];
      if (operation.bytes == 0) continue;
      metrics->Value(
          With(With(rank.labels, "op", OpName(static_cast<OpKind>(kind))), "via", rank.via),
          operation.bytes);
    }
  }
  metrics->Counter("tessera_rank_compute_seconds_total",
                   "Time that the rank's executor waited for its trainer, which computes.");
  for (const RankMetrics& rank : ranks) metrics->Value(rank.labels, rank.sums.trainer_ns / 1e9);
  metrics->Histogram("tessera_step_seconds", "From one step's end to the next one's.");
  std::vector<double> bounds;
  for (const int64_t bound_ns : kStepBounds_ns) bounds.push_back(bound_ns / 1e9);
  for (const RankMetrics& rank : ranks)
    metrics->Buckets(rank.labels, bounds, rank.sums.steps, rank.sums.step_ns / 1e9);
}

}  // namespace

std::map<std::string, HttpPage> WorkerPages(const Keeper* keeper, WorkerHealth health) {
  std::map<std::string, HttpPage> pages;
  const auto is_healthy = health.makes_progress;
  pages["/healthz"] = [is_healthy](const HttpRequest&) {
    return is_healthy() ? HttpReply{} : HttpReply{503, "text/plain", "no progress\n"};
  };
  const auto is_connected = health.coordinator_connected;
  pages["/readyz"] = [is_healthy, is_connected](const HttpRequest&) {
    if (!is_healthy()) return HttpReply{503, "text/plain", "no progress\n"};
    return is_connected() ? HttpReply{} : HttpReply{503, "text/plain", "no coordinator\n"};
  };
  pages["/metrics"] = [keeper, is_connected](const HttpRequest&) {
    MetricsText metrics;
    AddProcessMetrics("tessera-worker", &metrics);
    // Once for the whole page: a job that ends meanwhile is in all of its metrics, or in none.
    const std::vector<std::shared_ptr<HostedJob>> jobs = keeper->Jobs();
    metrics.Gauge("tessera_worker_jobs", "Jobs that this worker holds.");
    metrics.Value({}, static_cast<double>(jobs.size()));
    metrics.Gauge("tessera_worker_connected", "1 while the worker hears its coordinator.");
    metrics.Value({}, is_connected());
    const std::vector<RankMetrics> ranks = RanksOf(jobs);
    AddStates(ranks, &metrics);
    AddCounts(ranks, &metrics);
    AddCheckpoints(ranks, &metrics);
    AddTimes(ranks, &metrics);
    return metrics.Take();
  };
  return pages;
}

}  // namespace tessera
