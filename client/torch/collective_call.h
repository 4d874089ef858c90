// What a trainer's part of a collective call does about errors, outside of RunStep, which does it
// for its body.
//
//   the call throws, or fails on this rank alone   the other ranks get the error, and do not wait
//   another rank's process dies                    the call begins again in the next epoch
#ifndef TESSERA_CLIENT_TORCH_COLLECTIVE_CALL_H_
#define TESSERA_CLIENT_TORCH_COLLECTIVE_CALL_H_

#include <functional>

#include "absl/status/status.h"
#include "tessera/session.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {

// Calls `body` until no process dies in it, or until what it writes has been decided. After any
// error the next call begins in the next epoch. Where gradients of a step are under way, which the
// end of an epoch drops, the error is the caller's alone.
absl::Status RunCollective(Session* session, const std::function<absl::Status()>& body);
// The same; within RunStep once, because the step is done again as a whole.
absl::Status RunCollective(ShardedModel* model, const std::function<absl::Status()>& body);

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_COLLECTIVE_CALL_H_
