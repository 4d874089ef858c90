#include "tessera/hand_over.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"
#include "client/resize/hand_over_rpc.h"
#include "client/session/state_access.h"

namespace tessera {
namespace {

constexpr absl::Duration kMaxPatience = absl::Hours(7 * 24);

absl::Status Check(const Session& session, const HandOverOptions& options) {
  if (options.trainer_state.size() > kMaxHandOverTrainerState) {
    return absl::InvalidArgumentError(absl::StrCat("trainer_state has ",
                                                   options.trainer_state.size(), " bytes; at most ",
                                                   kMaxHandOverTrainerState, " are kept"));
  }
  if (options.patience < absl::ZeroDuration() || options.patience > kMaxPatience) {
    return absl::InvalidArgumentError(
        absl::StrCat("patience ", absl::FormatDuration(options.patience), " is not within ",
                     absl::FormatDuration(kMaxPatience)));
  }
  if (!session.initialized())
    return absl::FailedPreconditionError("not handed over: the job has no initial values yet");
  if (session.within_step()) return absl::FailedPreconditionError("not handed over: within a step");
  return absl::OkStatus();
}

}  // namespace

absl::Status HandOver(Session* session, const HandOverOptions& options) {
  RETURN_IF_ERROR(Check(*session, options));
  // Refused before the coordinator hears anything.
  const StateAccess access(session);
  HandOverRpc rpc(access.coordinator());
  v1::OfferRequest offer;
  offer.set_job_id(access.job_id());
  offer.set_generation(access.generation());
  offer.set_epoch(access.epoch());
  offer.set_rank(session->rank());
  // All ranks must offer the same version.
  offer.set_step(access.version());
  offer.set_trainer_state(options.trainer_state);
  offer.set_patience_ms(absl::ToInt64Milliseconds(options.patience));
  ASSIGN_OR_RETURN(const v1::HandOverInfo offered,
                   rpc.Offer(offer, SteadyNow() + access.operation_timeout()));
  v1::AwaitEndRequest request;
  request.set_job_id(offered.job_id());
  request.set_generation(offered.generation());
  request.set_number(offered.number());
  // From its acceptance on the taker needs a moment more.
  ASSIGN_OR_RETURN(
      const v1::HandOverInfo end,
      rpc.AwaitEnd(request, SteadyNow() + options.patience + access.operation_timeout()));
  if (end.phase() == v1::HAND_OVER_PHASE_DONE) return absl::OkStatus();
  // The epoch in which the job was frozen is over.
  RETURN_IF_ERROR(session->Recover());
  return absl::CancelledError(absl::StrCat("job '", access.job_id(), "' continues after step ",
                                           end.step(),
                                           ": its hand-over is cancelled: ", end.reason()));
}

}  // namespace tessera
