// Executor's side of the events by which a trainer on a GPU says that a gradient is complete: the
// trainer need not wait for its GPU before it submits a reduction, and the executor does.
//
//   trainer    kernels ... ●Record(event i)  submit reduce(event i)
//   executor   reduce: asks until event i is reached, then sums
//
// It asks, instead of letting a stream wait: the trainer may be killed, and its event is never
// reached then. Where events of other processes cannot be opened, though they can be made, it takes
// their names from the page, which the trainer sees: from then on that waits for its GPU by itself.
// Confined to one thread.
#ifndef TESSERA_WORKER_ENGINE_GRADIENT_EVENTS_H_
#define TESSERA_WORKER_ENGINE_GRADIENT_EVENTS_H_

#include <array>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "shm/control_page.h"
#include "worker/device/rank_device.h"

namespace tessera {

class GradientEvents {
 public:
  // Both outlive this.
  GradientEvents(RankDevice* device, ControlPage* control) : device_(device), control_(control) {}

  // Until the event is reached, or `stop` says so.
  // Errors: InvalidArgument   no event `index`
  //         Aborted           `stop` was true
  //         DeadlineExceeded  the trainer's GPU has not come there in time; or the event cannot be
  //                           opened, and the trainer does without from its next operation on
  //         Unavailable       the trainer that has the event is gone
  //         those of the device
  absl::Status Await(uint32_t index, absl::Time deadline, absl::FunctionRef<bool()> stop);

 private:
  RankDevice* const device_;
  ControlPage* const control_;
  // As they were named when they were opened.
  std::array<std::unique_ptr<SharedEvent>, kGradientEvents> events_;
};

}  // namespace tessera

#endif  // TESSERA_WORKER_ENGINE_GRADIENT_EVENTS_H_
