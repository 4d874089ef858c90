// What executors say, as their worker takes it. An executor may be in a trainer's process, so that
// it is untrusted. Pure.
#ifndef TESSERA_WORKER_KEEPER_EXECUTOR_EVENT_H_
#define TESSERA_WORKER_KEEPER_EXECUTOR_EVENT_H_

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/executor.pb.h"

namespace tessera {

// Errors: InvalidArgument it is not an event, or one that the coordinator would refuse: names the
// field
absl::StatusOr<v1::ExecutorEvent> ParseExecutorEvent(absl::string_view packet);

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_EXECUTOR_EVENT_H_
