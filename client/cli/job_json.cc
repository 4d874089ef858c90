#include "absl/strings/str_cat.h"
#include "client/cli/job_ranks.h"
#include "client/cli/job_view.h"
#include "client/cli/json_text.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

void AddStatus(const v1::RankStatus& status, Json* json) {
  (*json)["attached"] = status.attached();
  (*json)["step"] = status.step();
  (*json)["sequence"] = status.sequence();
  (*json)["doing"] = status.doing();
  (*json)["parameter_bytes"] = status.parameter_bytes();
  (*json)["gradient_bytes"] = status.gradient_bytes();
  (*json)["optimizer_bytes"] = status.optimizer_bytes();
  (*json)["executor_pid"] = status.executor_pid();
  const std::map<std::string, double> reported(status.reported().begin(), status.reported().end());
  (*json)["reported"] = reported;
}

Json RanksJson(const v1::Job& job) {
  Json ranks = Json::array();
  for (const RankRow& row : JoinRanks(job)) {
    Json json = {{"rank", row.rank}};
    if (row.placement != nullptr) {
      json["worker_id"] = row.placement->worker_id();
      json["device"] = row.placement->device();
    }
    // A rank that has not reported has the same keys as the others.
    AddStatus(row.status == nullptr ? v1::RankStatus::default_instance() : *row.status, &json);
    ranks.push_back(std::move(json));
  }
  return ranks;
}

Json JobJson(const v1::Job& job) {
  return Json{{"job_id", job.job_id()},
              {"state", StateName(job.state())},
              {"state_reason", job.state_reason()},
              {"owner", job.owner()},
              {"epoch", job.epoch()},
              {"committed_step", job.committed_step()},
              {"world_size", job.config().world_size()},
              {"strategy", StrategyName(job.config().strategy())},
              {"shard_group_size", job.config().shard_group_size()},
              {"fake_all_gather", job.config().fake_all_gather()},
              {"fake_reduce_scatter", job.config().fake_reduce_scatter()},
              {"num_units", job.model().units_size()},
              // As text: many readers of JSON round numbers above 2^53.
              {"layout_digest", absl::StrCat(absl::Hex(job.layout_digest(), absl::kZeroPad16))},
              {"ranks", RanksJson(job)}};
}

}  // namespace

std::string JobsJson(const v1::ListJobsResponse& jobs) {
  Json list = Json::array();
  for (const v1::Job* job : SortedJobs(jobs)) list.push_back(JobJson(*job));
  return AsciiJsonText(Json{{"jobs", std::move(list)}});
}

std::string WorkerJson(const v1::WorkerStatusResponse& worker) {
  Json jobs = Json::array();
  for (const v1::JobProgress& progress : worker.jobs()) {
    v1::Job job;
    *job.mutable_ranks() = progress.ranks();
    jobs.push_back({{"job_id", progress.job_id()},
                    {"epoch", progress.epoch()},
                    {"fake_all_gather", progress.fake_all_gather()},
                    {"fake_reduce_scatter", progress.fake_reduce_scatter()},
                    {"ranks", RanksJson(job)}});
  }
  return AsciiJsonText(Json{{"worker_id", worker.worker_id()},
                            {"incarnation", worker.incarnation()},
                            {"num_devices", worker.num_devices()},
                            {"device", worker.device()},
                            {"coordinator_connected", worker.coordinator_connected()},
                            {"cluster_id", worker.cluster_id()},
                            {"jobs", std::move(jobs)}});
}

}  // namespace tessera::cli
