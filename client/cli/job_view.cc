#include "client/cli/job_view.h"

#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "client/cli/fake_note.h"
#include "client/cli/job_ranks.h"
#include "client/cli/text_table.h"
#include "layout/layout_dump.h"

namespace tessera::cli {
namespace {

std::string WithoutPrefix(const std::string& name, absl::string_view prefix) {
  return name.empty() ? "UNKNOWN" : std::string(absl::StripPrefix(name, prefix));
}

using Cells = std::vector<std::string>;

Cells Joined(Cells left, Cells right) {
  left.insert(left.end(), std::make_move_iterator(right.begin()),
              std::make_move_iterator(right.end()));
  return left;
}

Cells StatusHeader() {
  return {"attached", "step", "seq", "doing", "parameters", "gradients", "optimizer", "executor"};
}

Cells StatusCells(const v1::RankStatus* status) {
  if (status == nullptr) return {"no", "-", "-", "", "-", "-", "-", "-"};
  return {status->attached() ? "yes" : "no",
          absl::StrCat(status->step()),
          absl::StrCat(status->sequence()),
          Printable(status->doing()),
          FormatBytes(status->parameter_bytes()),
          FormatBytes(status->gradient_bytes()),
          FormatBytes(status->optimizer_bytes()),
          status->executor_pid() == 0 ? "-" : absl::StrCat(status->executor_pid())};
}

// A line for each rank that reports something.
std::string ReportedLines(const v1::Job& job) {
  std::string text;
  for (const RankRow& row : JoinRanks(job)) {
    if (row.status == nullptr || row.status->reported().empty()) continue;
    const std::map<std::string, double> reported(row.status->reported().begin(),
                                                 row.status->reported().end());
    absl::StrAppend(&text, "  rank ", row.rank, " reports ",
                    absl::StrJoin(reported, ", ",
                                  [](std::string* out, const auto& value) {
                                    absl::StrAppend(out, Printable(value.first), " ", value.second);
                                  }),
                    "\n");
  }
  return text;
}

std::string NoteOf(const v1::Job& job) {
  return FakeNote(job.config().fake_all_gather(), job.config().fake_reduce_scatter());
}

}  // namespace

std::string StateName(v1::JobState state) {
  return WithoutPrefix(v1::JobState_Name(state), "JOB_STATE_");
}

std::string StrategyName(v1::Strategy strategy) {
  return WithoutPrefix(v1::Strategy_Name(strategy), "STRATEGY_");
}

std::string JobsTable(const v1::ListJobsResponse& jobs) {
  if (jobs.jobs().empty()) return "no jobs\n";
  TextTable table({"job", "state", "epoch", "step", "ranks", "attached", "strategy", "reason"});
  for (const v1::Job* job : SortedJobs(jobs)) {
    table.AddRow({Printable(job->job_id()), StateName(job->state()), absl::StrCat(job->epoch()),
                  absl::StrCat(job->committed_step()), absl::StrCat(job->config().world_size()),
                  absl::StrCat(CountAttached(*job)),
                  absl::StrCat(StrategyName(job->config().strategy()), NoteOf(*job)),
                  Printable(job->state_reason())});
  }
  return table.Render("");
}

std::string JobHeadline(const v1::Job& job) {
  return absl::StrCat(
      "job ", Printable(job.job_id()), ": ", StateName(job.state()), ", epoch ", job.epoch(),
      ", step ", job.committed_step(), ", ", CountAttached(job), " of ", job.config().world_size(),
      " ranks attached, ", StrategyName(job.config().strategy()), NoteOf(job),
      job.state_reason().empty() ? "" : absl::StrCat(" (", Printable(job.state_reason()), ")"));
}

std::string RanksTable(const v1::Job& job) {
  TextTable table(Joined({"rank", "worker", "device"}, StatusHeader()));
  for (const RankRow& row : JoinRanks(job)) {
    const v1::RankPlacement* placement = row.placement;
    table.AddRow(Joined(
        {absl::StrCat(row.rank), placement == nullptr ? "?" : Printable(placement->worker_id()),
         placement == nullptr ? "-" : absl::StrCat(placement->device())},
        StatusCells(row.status)));
  }
  return table.Render("  ") + ReportedLines(job);
}

std::string WorkerText(const v1::WorkerStatusResponse& worker) {
  std::string text = absl::StrCat(
      "worker ", Printable(worker.worker_id()), ": ", worker.num_devices(),
      worker.num_devices() == 1 ? " device, " : " devices, ",
      worker.device().empty() ? "" : absl::StrCat("memory on ", Printable(worker.device()), ", "),
      worker.coordinator_connected() ? "connected to the coordinator" : "NOT connected",
      worker.cluster_id().empty() ? "" : absl::StrCat(", cluster ", Printable(worker.cluster_id())),
      "\n");
  for (const v1::JobProgress& progress : worker.jobs()) {
    v1::Job job;  // As far as this worker knows it.
    *job.mutable_ranks() = progress.ranks();
    TextTable table(Joined({"rank"}, StatusHeader()));
    for (const RankRow& row : JoinRanks(job)) {
      table.AddRow(Joined({absl::StrCat(row.rank)}, StatusCells(row.status)));
    }
    absl::StrAppend(&text, "job ", Printable(progress.job_id()), ": epoch ", progress.epoch(), ", ",
                    progress.ranks_size(),
                    progress.ranks_size() == 1 ? " rank here" : " ranks here",
                    FakeNote(progress.fake_all_gather(), progress.fake_reduce_scatter()), "\n",
                    table.Render("  "));
  }
  return text;
}

}  // namespace tessera::cli
