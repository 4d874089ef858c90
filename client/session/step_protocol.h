// The steps of a job as one of its trainers takes part in them.
//
// For this folder; the contracts are those of Session. One thread at a time.
#ifndef TESSERA_CLIENT_SESSION_STEP_PROTOCOL_H_
#define TESSERA_CLIENT_SESSION_STEP_PROTOCOL_H_

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/session/gradient_reducer.h"
#include "client/session/gradient_slots.h"
#include "client/session/parameter_windows.h"
#include "client/session/rank_client.h"
#include "tessera/session_options.h"

namespace tessera {

class StepProtocol {
 public:
  // Not owned.
  StepProtocol(RankClient* client, ParameterWindows* windows, GradientSlots* slots,
               GradientReducer* reducer)
      : client_(client), windows_(windows), slots_(slots), reducer_(reducer) {}

  absl::Status CheckOptions(const StepOptions& options) const;
  absl::Status Announce(const StepOptions& options);
  absl::StatusOr<StepResult> Step(const StepOptions& options);
  absl::StatusOr<double> ClipGradNorm(double max_norm, double p, const StepOptions& options);
  absl::Status Run(const std::function<absl::Status()>& step_body);

  // Has all ranks vote on the gradient: kStep or kTally. Gradients are complete first, and what was
  // clipped is taken in. A tally clips by the last two; by the job's where `norm_p` is 0.
  absl::Status Vote(OpKind kind, StepOptions options, double norm_p = 0, double max_norm = 0);
  StepResult Skip();  // All ranks skip the step that they voted on.

 private:
  // Closes windows that are open, reduces what was not, and waits for the GPU.
  absl::Status CompleteGradients();
  // Tells other ranks of an error that they do not have. Not Aborted then.
  absl::Status RunBody(const std::function<absl::Status()>& step_body);

  RankClient* const client_;
  ParameterWindows* const windows_;
  GradientSlots* const slots_;
  GradientReducer* const reducer_;
  // The last Step() ended because the epoch did, so whether its step was decided is not known yet.
  bool ended_with_epoch_ = false;
  // What another rank's code failed with in the step that this rank's next Run() does.
  absl::Status failed_meanwhile_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_SESSION_STEP_PROTOCOL_H_
