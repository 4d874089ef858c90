// What each rank brings to a step, and what all of them together decide. Every rank that
// completes the vote sees the same ballots and counts them alike. Pure; thread-safe.
#ifndef TESSERA_WORKER_ENGINE_STEP_VOTE_H_
#define TESSERA_WORKER_ENGINE_STEP_VOTE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "job/job_config.h"
#include "layout/model_layout.h"
#include "shm/control_page.h"
#include "worker/engine/gradient_norm.h"

namespace tessera {

// Travels as bytes between ranks of one build, followed by a bit for each parameter of the job: it
// got a gradient on this rank.
struct Vote {
  double norm_part = 0;  // Of the reduced gradient in the own shards: see gradient_norm.h.
  double weight = -1;    // As Op::weight.
  int64_t step = 0;
  uint64_t numbers_hash = 0;  // Of what all ranks must give alike.
  int64_t first_non_finite_unit = -1;
  int64_t first_changed_unit = -1;  // See ShardWatch.
  uint64_t reduced_units_hash = 0;
  uint64_t put = 0;         // What this rank could take after the step; 0: none.
  int64_t wanted_save = 0;  // See state_files.h.
};

int64_t BallotBytes(int num_parameters);
// `touched`: by parameter, not 0 where it got a gradient.
std::vector<std::byte> EncodeBallot(const Vote& vote, const std::byte* touched, int num_parameters);

struct Tally {
  absl::Status status;          // Not OK: no rank takes the step.
  bool non_finite = false;      // Why: some gradient is NaN or infinite.
  double gradient_norm = 0;     // Of the step's gradient.
  double gradient_scale = 1;    // Makes it, clipped, of the reduced one: the mean over the ranks.
  double clip_coefficient = 1;  // What clipping has of that.
  std::vector<bool> touched;    // By parameter: some rank gave it a gradient.
  uint64_t put = 0;             // That all ranks would take; 0: none.
  int64_t wanted_save = 0;      // By all ranks; 0: none.
};

// `ballots`: of all ranks, concatenated.
Tally CountBallots(const std::vector<std::byte>& ballots, double divisor, const ClipRule& clip,
                   const ModelLayout& layout, int num_parameters);

// The hyper-parameters of the step that `op` asks for: what the trainer gave or the job's own.
// Errors: InvalidArgument  a number is out of range; the text says which.
absl::StatusOr<std::vector<HyperParameters>> GroupsOf(const Op& op, const ControlPage& control,
                                                      const JobConfig& config);

// How the tally that is asked for last clips: as the trainer says, or the job.
// Errors: InvalidArgument  a number is out of range; the text says which.
absl::StatusOr<ClipRule> TallyClipRule(const ControlPage& control, const JobConfig& config);

// FNV-1a over the bits of all numbers that ranks must give alike.
uint64_t HashNumbers(const Op& op, const std::vector<HyperParameters>& groups,
                     const ClipRule& clip);

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_STEP_VOTE_H_
