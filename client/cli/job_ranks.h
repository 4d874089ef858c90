// The ranks of a job, with where each is placed and what it last reported, joined.
#ifndef TESSERA_CLIENT_CLI_JOB_RANKS_H_
#define TESSERA_CLIENT_CLI_JOB_RANKS_H_

#include <cstdint>
#include <vector>

#include "proto/coordinator.pb.h"

namespace tessera::cli {

// Both pointers are into the job; null where the job does not say.
struct RankRow {
  int32_t rank = 0;
  const v1::RankPlacement* placement = nullptr;
  const v1::RankStatus* status = nullptr;
};

// Every rank that was placed or has reported, ascending. `job` must outlive the rows.
std::vector<RankRow> JoinRanks(const v1::Job& job);

int64_t CountAttached(const v1::Job& job);

// The jobs by job id. `jobs` must outlive the result.
std::vector<const v1::Job*> SortedJobs(const v1::ListJobsResponse& jobs);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_JOB_RANKS_H_
