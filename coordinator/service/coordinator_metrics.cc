#include "coordinator/service/coordinator_metrics.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "net/metrics_text.h"

namespace tessera::coordinator {
namespace {

// Read at once: the host's lock is held meanwhile.
constexpr size_t kJobsPerPage = 100;

std::vector<JobView> JobsOf(CoordinatorHost* host) {
  std::vector<JobView> jobs;
  size_t found = kJobsPerPage;
  while (found == kJobsPerPage) {
    std::vector<JobView> page =
        host->ListJobs(jobs.empty() ? JobId() : jobs.back().id, kJobsPerPage);
    found = page.size();
    for (JobView& job : page) jobs.push_back(std::move(job));
  }
  return jobs;
}

std::string StateOf(const JobView& job) {
  const bool completed = job.status.completed && !IsOver(job.status.state);
  return completed ? "completed" : absl::AsciiStrToLower(Name(job.status.state));
}

void AddJobs(const std::vector<JobView>& jobs, MetricsText* metrics) {
  std::map<std::string, int> by_state;
  // Those that alerts and boards ask for are there from the start.
  for (const char* state : {"waiting", "starting", "running", "completed", "lost"})
    by_state[state] = 0;
  for (const JobView& job : jobs) ++by_state[StateOf(job)];
  metrics->Gauge("tessera_jobs", "Jobs by state.");
  for (const auto& [state, count] : by_state) metrics->Value({{"state", state}}, count);
  metrics->Gauge("tessera_job_state", "1 for the state that the job is in.");
  for (const JobView& job : jobs)
    metrics->Value({{"job_id", job.id.value()}, {"state", StateOf(job)}}, 1);
  metrics->Gauge("tessera_job_committed_step", "Steps that all ranks of the job have done.");
  for (const JobView& job : jobs)
    metrics->Value({{"job_id", job.id.value()}}, job.committed_step.value());
  metrics->Counter("tessera_job_epochs_total",
                   "Epochs of the job: one begins with the job, and after each failure.");
  for (const JobView& job : jobs)
    metrics->Value({{"job_id", job.id.value()}}, job.status.epoch.value());
  metrics->Gauge("tessera_job_ranks_attached", "Ranks of the job that have a trainer.");
  for (const JobView& job : jobs) {
    int attached = 0;
    for (const auto& [rank, status] : job.ranks) attached += status.attached;
    metrics->Value({{"job_id", job.id.value()}}, attached);
  }
}

void AddRanks(const std::vector<JobView>& jobs, absl::string_view name, absl::string_view help,
              std::vector<Rank> JobView::*which, MetricsText* metrics) {
  metrics->Gauge(name, help);
  for (const JobView& job : jobs) {
    std::set<int64_t> named;
    for (const Rank rank : job.*which) named.insert(rank.value());
    for (const auto& [rank, status] : job.ranks) {
      metrics->Value({{"job_id", job.id.value()}, {"rank", absl::StrCat(rank)}},
                     static_cast<double>(named.count(rank)));
    }
  }
}

void AddCounts(const CoordinatorCounts& counts, MetricsText* metrics) {
  metrics->Counter("tessera_events_total", "Events, as tessera events shows them, by kind.");
  for (const auto& [kind, count] : counts.events)
    metrics->Value({{"kind", std::string(Name(kind))}}, static_cast<double>(count));
  metrics->Counter("tessera_epochs_total", "Epochs that began, by cause.");
  for (const auto& [cause, count] : counts.epochs)
    metrics->Value({{"cause", std::string(Name(cause))}}, static_cast<double>(count));
  metrics->Counter("tessera_order_mismatches_total", "Epochs in which ranks' orders differed.");
  metrics->Value({}, static_cast<double>(counts.order_mismatches));
}

void AddWorkers(const std::vector<CoordinatorHost::WorkerView>& workers, MetricsText* metrics) {
  int lost = 0;
  for (const CoordinatorHost::WorkerView& worker : workers) lost += worker.member.lost;
  metrics->Gauge("tessera_workers", "Workers by state; a lost one is silent for too long.");
  metrics->Value({{"state", "present"}}, static_cast<double>(workers.size()) - lost);
  metrics->Value({{"state", "lost"}}, lost);
  metrics->Gauge("tessera_worker_silence_seconds", "Since the worker was last heard of.");
  for (const CoordinatorHost::WorkerView& worker : workers)
    metrics->Value({{"worker", worker.id.value()}}, absl::ToDoubleSeconds(worker.silent));
  metrics->Gauge("tessera_worker_lost", "1 while the worker is lost.");
  for (const CoordinatorHost::WorkerView& worker : workers)
    metrics->Value({{"worker", worker.id.value()}}, worker.member.lost);
  metrics->Gauge("tessera_worker_memory_bytes", "Host memory of the worker for jobs.");
  for (const CoordinatorHost::WorkerView& worker : workers)
    metrics->Value({{"worker", worker.id.value()}}, worker.member.memory_bytes);
  metrics->Gauge("tessera_worker_claimed_memory_bytes", "Of that, claimed by jobs.");
  for (const CoordinatorHost::WorkerView& worker : workers)
    metrics->Value({{"worker", worker.id.value()}}, worker.claimed_bytes);
}

HttpReply Metrics(CoordinatorHost* host, const CallServer* calls) {
  MetricsText metrics;
  AddProcessMetrics("tessera-coordinator", &metrics);
  const std::vector<JobView> jobs = JobsOf(host);
  AddJobs(jobs, &metrics);
  AddRanks(jobs, "tessera_rank_missing", "1 while the other ranks wait for this one.",
           &JobView::missing_ranks, &metrics);
  AddRanks(jobs, "tessera_rank_slow",
           "1 while the rank computes so much longer than the others that they wait for it.",
           &JobView::slow_ranks, &metrics);
  AddCounts(host->Counts(), &metrics);
  AddWorkers(host->ListWorkers(), &metrics);
  const CoordinatorHost::JournalTimes journal = host->GetJournalTimes();
  metrics.Histogram("tessera_journal_append_seconds", "Time to make a change durable.");
  metrics.Buckets({}, CoordinatorHost::kAppendBounds_s, journal.counts, journal.sum_s);
  metrics.Gauge("tessera_journal_writable", "1 unless the last write to the journal failed.");
  metrics.Value({}, journal.healthy);
  metrics.Counter("tessera_grpc_handled_total", "Calls that have ended, by method and code.");
  for (const auto& [method_and_code, count] : calls->Handled()) {
    const auto& [method, code] = method_and_code;
    metrics.Value({{"method", method}, {"code", absl::StatusCodeToString(code)}}, count);
  }
  return metrics.Take();
}

}  // namespace

std::map<std::string, HttpPage> CoordinatorPages(CoordinatorHost* host, const CallServer* calls) {
  std::map<std::string, HttpPage> pages;
  pages["/healthz"] = [host](const HttpRequest&) {
    return host->AwaitTick() ? HttpReply{} : HttpReply{503, "text/plain", "stopping\n"};
  };
  pages["/readyz"] = [host](const HttpRequest&) {
    if (!host->AwaitTick()) return HttpReply{503, "text/plain", "stopping\n"};
    return host->GetJournalTimes().healthy
               ? HttpReply{}
               : HttpReply{503, "text/plain", "the journal cannot be written\n"};
  };
  pages["/metrics"] = [host, calls](const HttpRequest&) { return Metrics(host, calls); };
  return pages;
}

}  // namespace tessera::coordinator
