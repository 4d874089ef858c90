#include "worker/engine/gradient_events.h"

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera {

absl::Status GradientEvents::Await(uint32_t index, absl::Time deadline,
                                   absl::FunctionRef<bool()> stop) {
  // The index comes from shared memory that the trainer writes.
  if (index >= kGradientEvents)
    return absl::InvalidArgumentError(absl::StrCat("a gradient that waits for event ", index));
  // Another trainer has other ones.
  // A copy: the trainer could change the name between comparing and opening.
  const SharedEventName name = control_->gradient_events[index];
  std::unique_ptr<SharedEvent>& event = events_[index];
  if (event == nullptr || !(event->name() == name)) {
    event.reset();
    absl::StatusOr<std::unique_ptr<SharedEvent>> opened = device_->OpenSharedEvent(name);
    if (absl::IsFailedPrecondition(opened.status())) {
      // Tells the trainer, which looks at the names, to wait for its GPU by itself.
      for (SharedEventName& named : control_->gradient_events) named = SharedEventName();
      return absl::DeadlineExceededError(absl::StrCat(
          "the executor cannot query the trainer's GPU, so the trainer has to wait for it from "
          "now on: ",
          opened.status().message()));
    }
    RETURN_IF_ERROR(opened.status());
    event = *std::move(opened);
  }
  for (int asked = 0;; ++asked) {
    ASSIGN_OR_RETURN(const bool reached, event->Query());
    if (reached) return absl::OkStatus();
    // An event of a trainer's GPU wakes nobody here, so the end of the epoch is looked for, too.
    if (stop()) return absl::AbortedError("the epoch ends");
    if (SteadyNow() >= deadline)
      return absl::DeadlineExceededError("the trainer's GPU has not come there in time");
    // Frequent at first, for work that is nearly done; then rare enough to leave the CPU to others.
    if (asked < 50) {
      std::this_thread::yield();
    } else {
      absl::SleepFor(absl::Microseconds(20));
    }
  }
}

}  // namespace tessera
