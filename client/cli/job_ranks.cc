#include "client/cli/job_ranks.h"

#include <algorithm>
#include <map>

namespace tessera::cli {

std::vector<RankRow> JoinRanks(const v1::Job& job) {
  std::map<int32_t, RankRow> rows;
  for (const v1::RankPlacement& placement : job.placements()) {
    rows[placement.rank()].placement = &placement;
  }
  for (const auto& [rank, status] : job.ranks()) rows[rank].status = &status;
  std::vector<RankRow> sorted;
  for (auto& [rank, row] : rows) {
    row.rank = rank;
    sorted.push_back(row);
  }
  return sorted;
}

int64_t CountAttached(const v1::Job& job) {
  return std::count_if(job.ranks().begin(), job.ranks().end(),
                       [](const auto& rank) { return rank.second.attached(); });
}

std::vector<const v1::Job*> SortedJobs(const v1::ListJobsResponse& jobs) {
  std::vector<const v1::Job*> sorted;
  for (const v1::Job& job : jobs.jobs()) sorted.push_back(&job);
  std::sort(sorted.begin(), sorted.end(),
            [](const v1::Job* a, const v1::Job* b) { return a->job_id() < b->job_id(); });
  return sorted;
}

}  // namespace tessera::cli
