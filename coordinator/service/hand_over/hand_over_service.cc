#include "coordinator/service/hand_over/hand_over_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "coordinator/service/field_checks.h"
#include "job/field_limits.h"
#include "job/job_codec.h"

namespace tessera::coordinator {
namespace {

constexpr int64_t kMaxPatienceMs = int64_t{7} * 24 * 3600 * 1000;

v1::HandOverPhase EncodePhase(HandOverPhase phase) {
  switch (phase) {
    case HandOverPhase::kOffered:
      return v1::HAND_OVER_PHASE_OFFERED;
    case HandOverPhase::kAccepted:
      return v1::HAND_OVER_PHASE_ACCEPTED;
    case HandOverPhase::kDone:
      return v1::HAND_OVER_PHASE_DONE;
    case HandOverPhase::kCancelled:
      return v1::HAND_OVER_PHASE_CANCELLED;
  }
  return v1::HAND_OVER_PHASE_UNSPECIFIED;
}

// Requires that the job has had a hand-over.
void Encode(const JobView& view, v1::HandOverInfo* info) {
  const HandOver& hand_over = *view.hand_over;
  info->set_job_id(view.id.value());
  info->set_generation(view.generation.value());
  info->set_number(hand_over.number);
  info->set_phase(EncodePhase(hand_over.phase));
  info->set_step(hand_over.step.value());
  info->set_reason(hand_over.reason);
  info->set_taker_job_id(hand_over.taker.value());
  info->set_taker_generation(hand_over.taker_generation.value());
}

absl::Status Gone(const JobId& job) {
  return absl::AbortedError(absl::StrCat("job '", job.value(), "' was deleted meanwhile"));
}

absl::StatusOr<HandOverOffer> Decode(const v1::OfferRequest& request) {
  RETURN_IF_ERROR(CheckJobId(request.job_id()));
  RETURN_IF_ERROR(CheckRange("rank", request.rank(), 0, kMaxWorldSize));
  RETURN_IF_ERROR(CheckRange("patience_ms", request.patience_ms(), 0, kMaxPatienceMs));
  RETURN_IF_ERROR(CheckRange("size of trainer_state in bytes", request.trainer_state().size(), 0,
                             kMaxHandOverStateBytes));
  HandOverOffer offer;
  offer.job = JobId(request.job_id());
  offer.generation = Generation(request.generation());
  offer.epoch = Epoch(request.epoch());
  offer.rank = Rank(request.rank());
  offer.step = Step(request.step());
  offer.trainer_state = request.trainer_state();
  offer.patience = absl::Milliseconds(request.patience_ms());
  return offer;
}

absl::StatusOr<TakeOver> Decode(const v1::TakeOverRequest& request) {
  RETURN_IF_ERROR(CheckJobId(request.job_id()));
  RETURN_IF_ERROR(CheckJobId(request.taker_job_id()));
  RETURN_IF_ERROR(CheckRange("rank", request.rank(), 0, kMaxWorldSize));
  TakeOver event;
  event.job = JobId(request.job_id());
  event.generation = Generation(request.generation());
  event.number = request.number();
  event.taker = JobId(request.taker_job_id());
  event.taker_generation = Generation(request.taker_generation());
  event.epoch = Epoch(request.epoch());
  event.rank = Rank(request.rank());
  event.finish = request.finish();
  return event;
}

// Nullopt: the other ranks have not offered yet.
std::optional<absl::Status> LookAtOffer(const Coordinator& core, const HandOverOffer& offer,
                                        v1::HandOverInfo* reply) {
  const absl::StatusOr<JobView> view = core.GetJob(offer.job);
  if (!view.ok() || view->generation != offer.generation) return Gone(offer.job);
  // Also of a retry: the answer to an earlier call may have been lost.
  if (view->hand_over.has_value() && view->hand_over->step == offer.step &&
      (view->hand_over->number == offer.epoch.value() || Stands(view->hand_over->phase))) {
    Encode(*view, reply);
    return absl::OkStatus();
  }
  // Offers end with their epoch: in another one all ranks would have to offer again.
  if (view->status.epoch == offer.epoch && view->status.state == JobState::kRunning)
    return std::nullopt;
  return absl::AbortedError(absl::StrCat("job '", offer.job.value(), "': the epoch ended before ",
                                         "all ranks had handed it over: ", view->status.reason));
}

std::optional<absl::Status> LookAtTakeOver(const Coordinator& core, const TakeOver& event,
                                           v1::HandOverInfo* reply) {
  const absl::StatusOr<JobView> view = core.GetJob(event.job);
  if (!view.ok() || view->generation != event.generation) return Gone(event.job);
  if (!view->hand_over.has_value() || view->hand_over->number != event.number ||
      view->hand_over->phase == HandOverPhase::kCancelled ||
      view->status.state == JobState::kLost) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", event.job.value(), "': its hand-over is no longer pending: ",
                     view->hand_over.has_value() ? view->hand_over->reason : view->status.reason));
  }
  const HandOverPhase phase = view->hand_over->phase;
  if (phase == HandOverPhase::kDone || (phase == HandOverPhase::kAccepted && !event.finish)) {
    if (view->hand_over->taker != event.taker ||
        view->hand_over->taker_generation != event.taker_generation) {
      return absl::FailedPreconditionError(absl::StrCat("job '", event.job.value(), "': job '",
                                                        view->hand_over->taker.value(),
                                                        "' takes it over"));
    }
    Encode(*view, reply);
    return absl::OkStatus();
  }
  const absl::StatusOr<JobView> taker = core.GetJob(event.taker);
  if (!taker.ok() || taker->generation != event.taker_generation) return Gone(event.taker);
  if (taker->status.epoch == event.epoch && taker->status.state == JobState::kRunning)
    return std::nullopt;
  return absl::AbortedError(absl::StrCat("job '", event.taker.value(), "': the epoch ended before ",
                                         "all ranks were ready: ", taker->status.reason));
}

}  // namespace

void HandOverService::AddTo(CallServer* calls) {
  const std::string path = "tessera.v1.HandOvers/";
  AddUnary(calls, path + "Offer", "OfferHandOver", CallKind::kWaiting, this,
           &HandOverService::Offer);
  AddUnary(calls, path + "AwaitEnd", "AwaitHandOver", CallKind::kWaiting, this,
           &HandOverService::AwaitEnd);
  AddUnary(calls, path + "Cancel", "CancelHandOver", CallKind::kShort, this,
           &HandOverService::Cancel);
  AddUnary(calls, path + "Get", "GetHandOver", CallKind::kWaiting, this, &HandOverService::Get);
  AddStream(calls, path + "Read", "ReadHandOver", CallKind::kWaiting, this, &HandOverService::Read,
            kMaxMessageBytes);
  AddUnary(calls, path + "TakeOver", "TakeOver", CallKind::kWaiting, this,
           &HandOverService::TakeOver);
}

absl::Status HandOverService::Offer(ServedCall* call, const v1::OfferRequest& request,
                                    v1::HandOverInfo* reply) {
  return gate_->Change({call->context(), "OfferHandOver", JobId(request.job_id())}, Right::kChange,
                       [&](const Gate::Caller&) { return RunOffer(call, request, reply); });
}

absl::Status HandOverService::RunOffer(ServedCall* call, const v1::OfferRequest& request,
                                       v1::HandOverInfo* reply) {
  ASSIGN_OR_RETURN(HandOverOffer offer, Decode(request));
  // By this number the offer is withdrawn below, and no later one of the rank.
  offer.call = next_call_.fetch_add(1);
  RETURN_IF_ERROR(host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) {
    return core.OfferHandOver(offer, now, effects);
  }));
  const absl::Status status = host_->AwaitCore(
      {offer.job}, [&](const Coordinator& core) { return LookAtOffer(core, offer, reply); },
      [call] { return call->context()->IsCancelled(); });
  // The trainer may go on training, so its offer must not complete the hand-over later.
  if (!status.ok()) {
    host_
        ->Run([&](Coordinator& core, absl::Time, Effects*) {
          core.WithdrawOffer(offer);
          return absl::OkStatus();
        })
        .IgnoreError();  // It fails only if the coordinator stops.
  }
  return status;
}

absl::Status HandOverService::AwaitEnd(ServedCall* call, const v1::AwaitEndRequest& request,
                                       v1::HandOverInfo* reply) {
  const JobId job(request.job_id());
  RETURN_IF_ERROR(gate_->Admit({call->context(), "AwaitHandOver", job}, Right::kRead).status());
  const auto look = [&](const Coordinator& core) -> std::optional<absl::Status> {
    const absl::StatusOr<JobView> view = core.GetJob(job);
    if (!view.ok() || view->generation != Generation(request.generation())) return Gone(job);
    if (!view->hand_over.has_value() || view->hand_over->number != request.number())
      return absl::AbortedError(absl::StrCat("job '", job.value(), "' hands over again"));
    if (view->status.state == JobState::kLost) {
      return absl::DataLossError(
          absl::StrCat("job '", job.value(), "' is lost: ", view->status.reason));
    }
    const HandOverPhase phase = view->hand_over->phase;
    // After a cancellation the job takes steps again only in an epoch that is not frozen.
    const bool goes_on =
        phase == HandOverPhase::kCancelled && view->status.state == JobState::kRunning;
    if (phase != HandOverPhase::kDone && !goes_on) return std::nullopt;
    Encode(*view, reply);
    return absl::OkStatus();
  };
  return host_->AwaitCore({job}, look, [call] { return call->context()->IsCancelled(); });
}

absl::Status HandOverService::Cancel(ServedCall* call, const v1::CancelHandOverRequest& request,
                                     v1::HandOverInfo* reply) {
  const JobId job(request.job_id());
  const Gate::Caller* admitted = nullptr;
  const auto cancel = [&](Coordinator& core, absl::Time now, Effects* effects) -> absl::Status {
    RETURN_IF_ERROR(Gate::CheckSame(core.GetJob(job), *admitted));
    RETURN_IF_ERROR(core.CancelHandOver(job, "it was asked to be", now, effects));
    ASSIGN_OR_RETURN(const JobView view, core.GetJob(job));
    Encode(view, reply);
    return absl::OkStatus();
  };
  return gate_->Change({call->context(), "CancelHandOver", job}, Right::kChange,
                       [&](const Gate::Caller& caller) {
                         admitted = &caller;
                         return host_->Run(cancel);
                       });
}

absl::Status HandOverService::Get(ServedCall* call, const v1::GetHandOverRequest& request,
                                  v1::HandOverInfo* reply) {
  const JobId job(request.job_id());
  ASSIGN_OR_RETURN(const Gate::Caller caller,
                   gate_->Admit({call->context(), "GetHandOver", job}, Right::kRead));
  JobView handed_over;
  const auto look = [&](const Coordinator& core) -> std::optional<absl::Status> {
    absl::StatusOr<JobView> view = core.GetJob(job);
    if (!view.ok()) return view.status();
    RETURN_IF_ERROR(Gate::CheckSame(view, caller));
    if (view->status.state == JobState::kLost) {
      return absl::DataLossError(
          absl::StrCat("job '", job.value(), "' is lost: ", view->status.reason));
    }
    if (!view->hand_over.has_value()) return std::nullopt;
    const HandOverPhase phase = view->hand_over->phase;
    // The state is frozen once the job runs in the epoch that follows the offer.
    const bool is_ready = Stands(phase) && view->status.state == JobState::kRunning;
    if (phase != HandOverPhase::kDone && !is_ready) return std::nullopt;
    handed_over = *std::move(view);
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(host_->AwaitCore({job}, look, [call] { return call->context()->IsCancelled(); }));
  const int64_t bytes = handed_over.spec_bytes + int64_t{kMaxHandOverStatesBytes};
  call->MakeReplyInTurn(bytes, [reply, handed_over = std::move(handed_over)] {
    Encode(handed_over, reply);
    *reply->mutable_model() = EncodeModel(handed_over.spec->model);
    *reply->mutable_config() = EncodeJobConfig(handed_over.spec->config);
    for (const std::string& state : *handed_over.hand_over->trainer_states)
      reply->add_trainer_states(state);
    return absl::OkStatus();
  });
  return absl::OkStatus();
}

absl::Status HandOverService::Read(CallStream<v1::ReadHandOverRequest, v1::HandOverReply>* stream,
                                   v1::ReadHandOverRequest request) {
  grpc::ServerContext* const context = stream->context();
  RETURN_IF_ERROR(
      gate_->Admit({context, "ReadHandOver", JobId(request.job_id())}, Right::kRead).status());
  HandOverReader::Client client;
  client.write = [stream](const v1::HandOverReply& reply) { return stream->Write(reply); };
  client.cancelled = [context] { return context->IsCancelled(); };
  client.cancel = [context] { context->TryCancel(); };
  return HandOverReader(host_, hub_, &places_, times_, std::move(client)).Read(request);
}

absl::Status HandOverService::TakeOver(ServedCall* call, const v1::TakeOverRequest& request,
                                       v1::HandOverInfo* reply) {
  // Both jobs change, so the caller needs the right to both.
  RETURN_IF_ERROR(
      gate_->Admit({call->context(), "TakeOver", JobId(request.taker_job_id())}, Right::kChange)
          .status());
  return gate_->Change({call->context(), "TakeOver", JobId(request.job_id())}, Right::kChange,
                       [&](const Gate::Caller&) { return RunTakeOver(call, request, reply); });
}

absl::Status HandOverService::RunTakeOver(ServedCall* call, const v1::TakeOverRequest& request,
                                          v1::HandOverInfo* reply) {
  ASSIGN_OR_RETURN(const coordinator::TakeOver event, Decode(request));
  RETURN_IF_ERROR(host_->Run([&](Coordinator& core, absl::Time now, Effects* effects) {
    return core.TakeOverJob(event, now, effects);
  }));
  return host_->AwaitCore(
      {event.job, event.taker},
      [&](const Coordinator& core) { return LookAtTakeOver(core, event, reply); },
      [call] { return call->context()->IsCancelled(); });
}

}  // namespace tessera::coordinator
