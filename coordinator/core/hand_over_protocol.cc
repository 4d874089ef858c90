#include "coordinator/core/hand_over_protocol.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "coordinator/core/job_views.h"

namespace tessera::coordinator {
namespace {

std::string What(const JobId& job) { return absl::StrCat("job '", job.value(), "'"); }

// Whether the rank may speak for the job in this epoch.
absl::Status CheckSpeaker(const JobId& id, const Job& job, Generation generation, Epoch epoch,
                          Rank rank) {
  if (job.generation != generation) {
    return absl::FailedPreconditionError(absl::StrCat(What(id),
                                                      " was deleted and created again: generation ",
                                                      generation.value(), " is not current"));
  }
  if (job.status.state != JobState::kRunning || job.status.epoch != epoch) {
    return absl::AbortedError(absl::StrCat(What(id), ": epoch ", epoch.value(),
                                           " is not current; the job is ", Name(job.status.state),
                                           " in epoch ", job.status.epoch.value()));
  }
  if (rank.value() >= 0 && rank.value() < job.spec->config.world_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(What(id), " has no rank ", rank.value()));
}

HandOver Moved(HandOver hand_over, HandOverStep step) {
  const auto phase = NextPhase(hand_over.phase, step);
  TESSERA_CHECK(phase.has_value());
  hand_over.phase = *phase;
  return hand_over;
}

}  // namespace

absl::Status HandOverProtocol::OfferHandOver(const HandOverOffer& offer, absl::Time now,
                                             Effects* effects) {
  const Job* job = state_->FindJob(offer.job);
  if (job == nullptr) return NoSuchJob(offer.job);
  // A retry, because the reply was lost with a connection or a coordinator.
  if (job->generation == offer.generation && job->hand_over.has_value() &&
      job->hand_over->step == offer.step &&
      (job->IsFrozen() || job->hand_over->number == offer.epoch.value())) {
    return absl::OkStatus();
  }
  // The taker may have what it was given, and decide its next step from that.
  if (job->hand_over.has_value() && job->hand_over->phase == HandOverPhase::kAccepted) {
    return absl::FailedPreconditionError(
        absl::StrCat(What(offer.job), " is given at step ", job->hand_over->step.value(),
                     " to job '", job->hand_over->taker.value(), "', which has accepted it"));
  }
  RETURN_IF_ERROR(CheckSpeaker(offer.job, *job, offer.generation, offer.epoch, offer.rank));
  auto& offers = state_->Runtime(offer.job, *job).offers;
  for (const auto& [rank, other] : offers) {
    if (rank == offer.rank.value() || other.step == offer.step) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        What(offer.job), ": rank ", rank, " hands it over at step ", other.step.value(), ", rank ",
        offer.rank.value(), " at step ", offer.step.value()));
  }
  // Not journalled: a trainer's call ends with the coordinator or the epoch, and it offers again.
  offers[static_cast<int32_t>(offer.rank.value())] = offer;
  if (static_cast<int>(offers.size()) < job->spec->config.world_size) return absl::OkStatus();
  HandOver made;
  // Epochs only increase, so this is larger than any earlier hand-over's number.
  made.number = offer.epoch.value();
  made.step = offer.step;
  auto states = std::make_shared<std::vector<std::string>>();
  size_t bytes = 0;
  absl::Duration patience = offer.patience;
  // The map is sorted, so the states are in the order of the ranks.
  for (const auto& [rank, of_rank] : offers) {
    states->push_back(of_rank.trainer_state);
    bytes += of_rank.trainer_state.size();
    patience = std::min(patience, of_rank.patience);
  }
  if (bytes > kMaxHandOverStatesBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(What(offer.job), ": its trainers' states are ",
                                                     bytes, " bytes together, ",
                                                     kMaxHandOverStatesBytes, " at most are kept"));
  }
  made.deadline = now + patience;
  made.trainer_states = std::move(states);
  // Before the epoch opens, so that it is a frozen one.
  state_->Put(HandOverRecord{offer.job, made}, effects);
  epochs_->OpenEpoch(offer.job, absl::StrCat("it is handed over at step ", made.step.value()),
                     EpochCause::kHandOver, now, effects);
  return absl::OkStatus();
}

void HandOverProtocol::WithdrawOffer(const HandOverOffer& offer) {
  const Job* job = state_->FindJob(offer.job);
  if (job == nullptr || job->generation != offer.generation || job->status.epoch != offer.epoch)
    return;
  auto& offers = state_->Runtime(offer.job, *job).offers;
  const auto it = offers.find(static_cast<int32_t>(offer.rank.value()));
  // A later attempt of the rank may have replaced the offer of the call that ended.
  if (it != offers.end() && it->second.call == offer.call) offers.erase(it);
}

absl::Status HandOverProtocol::CancelHandOver(const JobId& id, const std::string& reason,
                                              absl::Time now, Effects* effects) {
  const Job* job = state_->FindJob(id);
  if (job == nullptr) return NoSuchJob(id);
  // A repeated request gets the answer of the first.
  if (job->hand_over.has_value() && job->hand_over->phase == HandOverPhase::kCancelled &&
      job->hand_over->reason == reason)
    return absl::OkStatus();
  if (!job->IsFrozen() || IsOver(job->status.state))
    return absl::FailedPreconditionError(absl::StrCat(What(id), " is not handed over"));
  if (job->hand_over->phase == HandOverPhase::kAccepted) {
    return absl::FailedPreconditionError(absl::StrCat(
        What(id), ": job '", job->hand_over->taker.value(),
        "' takes it over already: as long as that job exists, only that one can continue"));
  }
  HandOver ended = Moved(*job->hand_over, HandOverStep::kCancel);
  ended.reason = reason;
  EndHandOver(id, std::move(ended), now, effects);
  return absl::OkStatus();
}

void HandOverProtocol::EndHandOver(const JobId& id, HandOver ended, absl::Time now,
                                   Effects* effects) {
  const std::string reason = absl::StrCat("its hand-over is cancelled: ", ended.reason);
  state_->Put(HandOverRecord{id, std::move(ended)}, effects);
  // An epoch that is being prepared begins unfrozen; a running one has to be replaced.
  if (state_->FindJob(id)->status.state == JobState::kRunning)
    epochs_->OpenEpoch(id, reason, EpochCause::kHandOver, now, effects);
  effects->changed_jobs.insert(id);
}

absl::Status HandOverProtocol::TakeOverJob(const TakeOver& event, absl::Time now,
                                           Effects* effects) {
  const Job* job = state_->FindJob(event.job);
  if (job == nullptr) return NoSuchJob(event.job);
  const auto refuse = [&](absl::string_view why) {
    return absl::FailedPreconditionError(absl::StrCat(What(event.job), ": ", why));
  };
  if (job->generation != event.generation || !job->hand_over.has_value() ||
      job->hand_over->number != event.number) {
    return refuse("this hand-over is no longer pending");
  }
  const HandOver& hand_over = *job->hand_over;
  if (hand_over.phase == HandOverPhase::kCancelled)
    return refuse(absl::StrCat("its hand-over is cancelled: ", hand_over.reason));
  if (job->status.state == JobState::kLost) return refuse(job->status.reason);
  const bool is_takers = hand_over.phase != HandOverPhase::kOffered;
  if (is_takers &&
      (hand_over.taker != event.taker || hand_over.taker_generation != event.taker_generation)) {
    return refuse(absl::StrCat("job '", hand_over.taker.value(), "' takes it over already"));
  }
  // A repeated report gets the answer of the first.
  if (hand_over.phase == HandOverPhase::kDone || (is_takers && !event.finish))
    return absl::OkStatus();
  if (event.finish && !is_takers) return refuse("no job has accepted it");
  // Until its frozen epoch has begun, workers of the old job may still decide a step.
  if (!hand_over.frozen)
    return absl::AbortedError(absl::StrCat(What(event.job), ": its epoch has not begun"));
  const Job* taker = state_->FindJob(event.taker);
  if (taker == nullptr) return NoSuchJob(event.taker);
  if (event.taker == event.job) return refuse("it cannot take over itself");
  RETURN_IF_ERROR(
      CheckSpeaker(event.taker, *taker, event.taker_generation, event.epoch, event.rank));
  auto& ready = state_->Runtime(event.taker, *taker).take_overs;
  // What ranks reported for another hand-over, or for the other phase, does not count.
  for (auto it = ready.begin(); it != ready.end();)
    it = SameBut(it->second, event) ? std::next(it) : ready.erase(it);
  ready[static_cast<int32_t>(event.rank.value())] = event;
  if (static_cast<int>(ready.size()) < taker->spec->config.world_size) return absl::OkStatus();
  if (event.finish) {
    FinishHandOver(event.job, now, effects);
    return absl::OkStatus();
  }
  // From this record on only the taker can decide the next step.
  HandOver accepted = Moved(hand_over, HandOverStep::kAccept);
  accepted.taker = event.taker;
  accepted.taker_generation = event.taker_generation;
  state_->Put(HandOverRecord{event.job, std::move(accepted)}, effects);
  effects->changed_jobs.insert(event.job);
  return absl::OkStatus();
}

void HandOverProtocol::FinishHandOver(const JobId& id, absl::Time now, Effects* effects) {
  const Job& job = *state_->FindJob(id);
  HandOver done = Moved(*job.hand_over, HandOverStep::kFinish);
  JobStatus next = job.status;
  const auto state = NextState(next.state, JobEvent::kHandedOver);
  TESSERA_CHECK(state.has_value());
  next.state = *state;
  next.completed = false;
  next.reason =
      absl::StrCat("job '", done.taker.value(), "' has taken it over at step ", done.step.value());
  // Not earlier: until all ranks of the taker had the values, this memory was the only copy.
  for (const WorkerId& worker : WorkersOf(next.placements))
    effects->commands.push_back({worker, DropJob{id, job.generation}});
  saves_->EndPendingSaves(id, absl::FailedPreconditionError(next.reason), now, effects);
  state_->Put(HandOverRecord{id, std::move(done)}, effects);
  state_->Put(JobStatusRecord{id, std::move(next)}, effects);
  state_->Put(EpochOverRecord{id}, effects);
  effects->changed_jobs.insert(id);
}

void HandOverProtocol::AdvanceHandOvers(absl::Time now, Effects* effects) {
  // The taker may be one of the jobs that workers have yet to describe.
  if (state_->takes_over()) return;
  std::vector<JobId> frozen;
  for (const auto& [id, job] : state_->jobs()) {
    if (job.IsFrozen() && !IsOver(job.status.state) && !state_->IsBehind(id, job))
      frozen.push_back(id);
  }
  for (const JobId& id : frozen) AdvanceHandOver(id, now, effects);
}

void HandOverProtocol::AdvanceHandOver(const JobId& id, absl::Time now, Effects* effects) {
  const HandOver& hand_over = *state_->FindJob(id)->hand_over;
  if (hand_over.phase == HandOverPhase::kOffered) {
    if (now < hand_over.deadline) return;
    HandOver ended = Moved(hand_over, HandOverStep::kCancel);
    ended.reason = "no job took it over in time";
    return EndHandOver(id, std::move(ended), now, effects);
  }
  const Job* taker = state_->FindJob(hand_over.taker);
  if (taker != nullptr && taker->generation == hand_over.taker_generation) {
    // The taker has made a step, so all of its ranks have the state, although none reported it.
    if (taker->committed_step > Step(0)) FinishHandOver(id, now, effects);
    return;
  }
  // The deadline stays. If it has passed meanwhile, the next tick cancels the hand-over.
  HandOver offered = Moved(hand_over, HandOverStep::kTakerGone);
  offered.taker = JobId();
  offered.taker_generation = Generation();
  state_->Put(HandOverRecord{id, std::move(offered)}, effects);
  effects->changed_jobs.insert(id);
}

}  // namespace tessera::coordinator
