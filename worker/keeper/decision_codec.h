// What was decided of a step, as bytes that go from a worker that knows it to one that does not.
// Pure but for the pages; thread-safe.
#ifndef TESSERA_WORKER_KEEPER_DECISION_CODEC_H_
#define TESSERA_WORKER_KEEPER_DECISION_CODEC_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/engine/group_page.h"

namespace tessera {

// A v1.StepDecision of the page's decided step; empty where there is none. No rank is in an epoch
// meanwhile.
std::string EncodeDecision(const GroupPage& group, const UpdateCounts& counts, int num_groups);

// Records that `step` was decided, as `bytes` (untrusted) say. No rank is in an epoch meanwhile.
// Errors: DataLoss  the bytes are malformed, of another step or job, or have numbers that no step
//                   has; or the page's decided step is not the one before. Nothing is changed
absl::Status RecordDecision(const std::string& bytes, int64_t step, GroupPage* group,
                            const UpdateCounts& counts, int num_groups);

}  // namespace tessera

#endif  // TESSERA_WORKER_KEEPER_DECISION_CODEC_H_
