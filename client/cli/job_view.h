// Jobs and workers as a person reads them and as JSON. Pure. Every field comes from a server and is
// made safe for a terminal; ranks are those that were placed or have reported, in order.
#ifndef TESSERA_CLIENT_CLI_JOB_VIEW_H_
#define TESSERA_CLIENT_CLI_JOB_VIEW_H_

#include <string>

#include "proto/coordinator.pb.h"
#include "proto/worker.pb.h"

namespace tessera::cli {

// "RUNNING"; "UNKNOWN" for what this build does not know.
std::string StateName(v1::JobState state);
std::string StrategyName(v1::Strategy strategy);  // "FULL_SHARD"

// One row a job, by job id; "no jobs" without any.
std::string JobsTable(const v1::ListJobsResponse& jobs);

// "job gpt: RUNNING, epoch 3, step 120, 4 of 4 ranks attached, FULL_SHARD" and the reason.
std::string JobHeadline(const v1::Job& job);
// One row a rank: where it is, what it does, what memory it holds.
std::string RanksTable(const v1::Job& job);

std::string WorkerText(const v1::WorkerStatusResponse& worker);

// {"jobs": [{"job_id": "gpt", "state": "RUNNING", ..., "ranks": [{"rank": 0, ...}]}]}
std::string JobsJson(const v1::ListJobsResponse& jobs);
std::string WorkerJson(const v1::WorkerStatusResponse& worker);

}  // namespace tessera::cli

#endif  // TESSERA_CLIENT_CLI_JOB_VIEW_H_
