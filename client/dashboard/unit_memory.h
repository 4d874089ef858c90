// What each unit of a job takes of a rank's memory, as JSON for the page. Pure; thread-safe.
//
//   {"job_id": "gpt", "generation": 3, "num_units": 25,
//    "total": {"num_elements": 124439808, "parameter_bytes": 248879616, ...},
//    "units": [{"name": "blocks.0", "dtype": "fp32", "strategy": "FULL_SHARD",
//               "num_elements": 7087872, "parameter_bytes": 14175744, "gradient_bytes": 14175744,
//               "optimizer_bytes": 28351488}]}
//
// Elements are of the whole unit, without padding. Bytes are of one rank, with padding, as
// `tessera layout` plans them (layout/memory_plan.h): one version of everything.
#ifndef TESSERA_CLIENT_DASHBOARD_UNIT_MEMORY_H_
#define TESSERA_CLIENT_DASHBOARD_UNIT_MEMORY_H_

#include <string>

#include "absl/status/statusor.h"
#include "proto/coordinator.pb.h"

namespace tessera::dashboard {

// Of the `max_units` units that take most, the largest first, and then in the model's order.
// Errors: InvalidArgument  as DecodeModel, DecodeJobConfig, LayOut and PlanMemory.
absl::StatusOr<std::string> UnitMemoryJson(const v1::Job& job, size_t max_units);

}  // namespace tessera::dashboard

#endif  // TESSERA_CLIENT_DASHBOARD_UNIT_MEMORY_H_
