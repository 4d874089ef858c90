// Bounds of what a rank's executor tells its worker, and the worker its coordinator. Both look: the
// worker so that an executor that says something impossible is replaced, the coordinator since it
// trusts no wire. Pure; thread-safe. Every error is InvalidArgument and names the field.
#ifndef TESSERA_JOB_WORKER_EVENTS_H_
#define TESSERA_JOB_WORKER_EVENTS_H_

#include <cstdint>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "proto/coordinator.pb.h"
#include "proto/saves.pb.h"

namespace tessera {

constexpr int64_t kMaxCounter = std::numeric_limits<int64_t>::max() / 2;  // Room to add to.

absl::Status CheckOrder(const v1::OrderAnnouncement& order);
absl::Status CheckStepReport(const v1::StepReport& step);
absl::Status CheckSaveReport(const v1::SaveReport& report);
absl::Status CheckRankAddress(absl::string_view address);

}  // namespace tessera

#endif  // TESSERA_JOB_WORKER_EVENTS_H_
