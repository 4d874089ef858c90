// What is at the path of a save before it begins: a checkpoint that must not be replaced; or the
// one that was requested, by a prior attempt whose ranks died before they reported it.
//
//   a try: ... ──► it has its name ──► executors die ──► the epoch ends ──► the next try finds it
//
// Manifests of saves that were asked for say which request they are of, so that it is known again
// (checkpoint/manifest/manifest.h). Collective: every rank calls it at the same point of its order.
// Stateless; thread-safe.
#ifndef TESSERA_WORKER_EXECUTOR_SAVE_PRIOR_ATTEMPT_H_
#define TESSERA_WORKER_EXECUTOR_SAVE_PRIOR_ATTEMPT_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "proto/checkpoint.pb.h"
#include "worker/comm/communicator.h"
#include "worker/executor/executor_memory.h"

namespace tessera {

struct PriorAttempt {
  std::string request;   // What manifests of this save have as `request`; empty: nobody asked.
  bool is_made = false;  // By an earlier try, on all ranks; durable by now.
  // Of what is made:
  int64_t step = 0;
  v1::SaveReply reply;
};

// `request`: checked, and the same on all ranks but for what is each one's own. What was made of a
// request that permits replacing is not looked for, but for parts, which a later step's may not
// replace. Every rank finds the same; but of older checkpoints that are removed rank 0 alone tells.
// Errors: agreed ones (agreed_error.h): AlreadyExists  as v1::SaveSpec::no_overwrite; the storage's;
// the communicator's.
absl::StatusOr<PriorAttempt> FindPriorAttempt(const v1::SaveRequest& request,
                                              const ExecutorMemory& memory,
                                              Communicator* communicator);

}  // namespace tessera

#endif  // TESSERA_WORKER_EXECUTOR_SAVE_PRIOR_ATTEMPT_H_
