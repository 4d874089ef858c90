#include "worker/engine/state_hold.h"

#include "absl/strings/str_cat.h"
#include "base/steady_time.h"

namespace tessera {
namespace {

// Each try that fails takes a whole step of training, so this many mean that the words are corrupt.
constexpr int kMaxTries = 1000;

// Of `held`.
bool Blocks(int64_t held, int64_t step) { return held != 0 && held - 1 <= step - 2; }

// Operations on `held` and `writing` that name no order are sequentially consistent: state_hold.h
// needs one total order of both sides' stores and loads.
// With the fence a thread that sees any of the data written from here on, and reads the word after
// a fence of its own, sees `step` there.
void Announce(StateHold* hold, int64_t step) {
  // Raised before anything is overwritten, so that a mapped read never takes new bytes for old
  // ones.
  hold->writing.store(step);
  std::atomic_thread_fence(std::memory_order_release);
}

}  // namespace

absl::StatusOr<int64_t> HoldNewest(StateHold* hold, const std::atomic<int64_t>& applied_step) {
  int64_t held = 0;
  for (int tries = 0; tries < kMaxTries; ++tries) {
    // Pairs with the release of applied_step: the version is whole.
    const int64_t step = applied_step.load(std::memory_order_acquire);
    if (step < 0) break;
    // The expected value is 0 at first, and what stood there after a failure.
    if (!hold->held.compare_exchange_strong(held, step + 1)) {
      if (tries > 0 && held == 0) continue;  // The writer took it away meanwhile.
      return absl::UnavailableError("another reader holds the state");
    }
    held = step + 1;
    Bump(&hold->changes);
    // After the hold: either this sees the writer's announcement, or the writer sees the hold.
    if (hold->writing.load() < step + 2) return step;
  }
  // The writer may have taken it away already, which is as good.
  if (held != 0 && hold->held.compare_exchange_strong(held, 0)) Bump(&hold->changes);
  return absl::UnavailableError("steps are faster than a reader can hold one");
}

absl::Status MoveHold(StateHold* hold, int64_t from, int64_t to) {
  int64_t held = from + 1;
  // In one exchange: between a release and a new hold the writer could pass both versions.
  if (!hold->held.compare_exchange_strong(held, to + 1)) {
    return absl::AbortedError(absl::StrCat("step ", from, " is held no longer"));
  }
  Bump(&hold->changes);
  return absl::OkStatus();
}

bool Release(StateHold* hold, int64_t step) {
  int64_t held = step + 1;
  // It fails only if the writer took the hold away, since there is one reader at a time.
  const bool stood = hold->held.compare_exchange_strong(held, 0);
  if (stood) Bump(&hold->changes);
  return stood;
}

bool TryBeginWriting(StateHold* hold, int64_t step) {
  // Announced first. A reader that holds after this load sees the announcement and tries a newer
  // step.
  Announce(hold, step);
  return !Blocks(hold->held.load(), step);
}

absl::StatusOr<WriteBegin> BeginWriting(StateHold* hold, int64_t step, const AbortFlag& abort,
                                        absl::Time deadline) {
  WriteBegin outcome = WriteBegin::kAtOnce;
  Announce(hold, step);
  while (true) {
    // Before the hold is looked at: a release in between changes the word, so no wake-up is lost.
    const uint32_t seen = hold->changes.value.load(std::memory_order_acquire);
    int64_t held = hold->held.load();
    if (!Blocks(held, step)) return outcome;
    if (SteadyNow() >= deadline) {
      // By exchange: the reader's Release then fails, and so it learns that its copy is void.
      if (hold->held.compare_exchange_strong(held, 0)) return WriteBegin::kBrokeHold;
      // The reader released or moved it meanwhile: looked at again.
      continue;
    }
    outcome = WriteBegin::kWaited;
    const absl::Status status = WaitUntil(
        &hold->changes, [seen](uint32_t now) { return now != seen; }, abort, deadline);
    // A wait that ended at the deadline goes round once more and breaks the hold.
    if (absl::IsAborted(status)) return status;
  }
}

}  // namespace tessera
