// The hand-over of a job to another one, as one enum and one transition function.
//
//              all of the taker's ranks          all of them have it
//                are ready                         as their values
//   kOffered ─────────────────────► kAccepted ───────────────────────► kDone
//      │  ▲                             │
//      │  └──────── the taker is gone ──┘
//      └── cancelled, nobody came ──► kCancelled
//
// A new offer may begin in any phase except kAccepted and kDone. While the hand-over is pending
// (kOffered, kAccepted) the job runs only in frozen epochs: none of its steps is decided. So only
// one of the two jobs can decide the next step: the old one in kCancelled, the taker from kAccepted
// on, and neither in kOffered. Pure; thread-safe.
#ifndef TESSERA_COORDINATOR_CORE_HAND_OVER_STATE_H_
#define TESSERA_COORDINATOR_CORE_HAND_OVER_STATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "coordinator/core/types.h"

namespace tessera::coordinator {

enum class HandOverPhase { kOffered, kAccepted, kDone, kCancelled };
enum class HandOverStep { kAccept, kTakerGone, kFinish, kCancel };

absl::string_view Name(HandOverPhase phase);

// The phase after `step`, or nullopt where it cannot happen.
std::optional<HandOverPhase> NextPhase(HandOverPhase phase, HandOverStep step);

inline bool Stands(HandOverPhase phase) {
  return phase == HandOverPhase::kOffered || phase == HandOverPhase::kAccepted;
}

constexpr size_t kMaxHandOverStateBytes = 64 << 10;  // Of one trainer.
constexpr size_t kMaxHandOverStatesBytes = 4 << 20;  // Of all trainers.

// The opaque bytes that the trainers hand over, by rank.
using TrainerStates = std::shared_ptr<const std::vector<std::string>>;

// What survives a restart. Copyable value; copies share the trainers' states.
struct HandOver {
  HandOverPhase phase = HandOverPhase::kOffered;
  int64_t number = 0;   // Larger than that of any earlier hand-over of the job.
  Step step;            // The last decided step.
  bool frozen = false;  // A frozen epoch has begun at that step: no worker is in an older one.
  absl::Time deadline;  // For a taker to accept it.
  JobId taker;          // From kAccepted on.
  Generation taker_generation;
  std::string reason;  // kCancelled: why.
  TrainerStates trainer_states;
};

// "handed over at step 7: ...", for display. Only while it is pending.
std::string DescribeHandOver(const HandOver& hand_over);

// One rank's part of an offer.
struct HandOverOffer {
  JobId job;
  Generation generation;
  Epoch epoch;
  Rank rank;
  Step step;
  std::string trainer_state;
  absl::Duration patience;
  int64_t call = 0;  // Tells one attempt from the next.
};
// One rank of a taker is ready or, with `finish`, has the values.
struct TakeOver {
  JobId job;
  Generation generation;
  int64_t number = 0;
  JobId taker;
  Generation taker_generation;
  Epoch epoch;  // The taker's.
  Rank rank;
  bool finish = false;

  friend bool SameBut(const TakeOver& a, const TakeOver& b) {  // Except for the rank.
    return a.job == b.job && a.generation == b.generation && a.number == b.number &&
           a.finish == b.finish;
  }
};

}  // namespace tessera::coordinator

#endif  // TESSERA_COORDINATOR_CORE_HAND_OVER_STATE_H_
