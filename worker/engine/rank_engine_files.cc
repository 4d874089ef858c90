// What RankEngine does with files, through StateFiles, and with long messages of its trainer.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "worker/engine/load_target.h"
#include "worker/engine/rank_engine.h"

namespace tessera {
namespace {

// Of what a trainer sends at once, its own bytes for a checkpoint included.
constexpr size_t kMaxRequestBytes = size_t{1} << 30;

constexpr uint32_t kAllArrays = 7;

}  // namespace

absl::Status RankEngine::Send(const Op& op) {
  if (op.message_bytes > kPieceBytes || request_.size() + op.message_bytes > kMaxRequestBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank ", options_.rank.value(), ": a message of ", request_.size() + op.message_bytes,
        " bytes, or a piece of ", op.message_bytes));
  }
  request_.append(options_.control->piece, op.message_bytes);
  return absl::OkStatus();
}

std::string RankEngine::TakeRequest() { return std::exchange(request_, std::string()); }

void RankEngine::Reply(std::string reply) {
  reply_ = std::move(reply);
  reply_offset_ = 0;
}

void RankEngine::Receive() {
  const size_t bytes = std::min(kPieceBytes, reply_.size() - reply_offset_);
  memcpy(options_.control->piece, reply_.data() + reply_offset_, bytes);
  options_.control->piece_bytes.store(bytes, std::memory_order_relaxed);
  reply_offset_ += bytes;
}

void RankEngine::Tell(OpKind kind) {
  if (kind == OpKind::kCancelSave) options_.files->CancelSave();
  if (kind == OpKind::kReadProgress) {
    Reply(EncodeProgress(
        LoadProgress(*options_.group, options_.updates, step_, options_.config->groups.size())));
  } else {
    Reply(kind == OpKind::kSaveStatus ? options_.files->SaveStatus() : "");
  }
  PublishResult(absl::OkStatus(), 0);
}

absl::Status RankEngine::Save() {
  const std::string request = TakeRequest();
  const int64_t number =
      options_.recorder->Enqueued(OrderStep(), order_.sequence(), OpKind::kSave, -1, 0);
  RETURN_IF_ERROR(AwaitReductions());
  RETURN_IF_ERROR(Ordered(OpKind::kSave, -1, 0, options_.config->compute_dtype));
  options_.recorder->Started(number);
  absl::Status outcome;
  std::string reply;
  if (options_.control->initialized.load() == 0) {
    outcome = absl::FailedPreconditionError("not saved: the job has no initial values yet");
  } else {
    StateImage* image = options_.images == nullptr ? nullptr : &options_.images->saved;
    if (image != nullptr) {
      options_.files->AwaitSaved();  // A save in the background reads the image as it writes.
      RETURN_IF_ERROR(Reserve(image, &outcome));
      if (outcome.ok()) RETURN_IF_ERROR(image->Pull(step_ % 2, options_.kernels));
    }
    const auto values = [&](StateArray array, const ShardSegment& segment) {
      return ConstValues(Addressable(image, array, segment, step_));
    };
    const SavedState state = {
        step_,
        LoadProgress(*options_.group, options_.updates, step_, options_.config->groups.size()),
        optimizer_.Moments(), values, /*stays=*/image != nullptr};
    RETURN_IF_ERROR(options_.files->Save(request, state, &reply, &outcome));
  }
  RETURN_IF_ERROR(Interruption());
  options_.recorder->Done(number);
  Reply(std::move(reply));
  PublishResult(outcome, 0);
  return absl::OkStatus();
}

Values RankEngine::Addressable(StateImage* image, StateArray array, const ShardSegment& segment,
                               int64_t step) const {
  return image == nullptr ? optimizer_.Staged(array, segment, step) : image->At(array, segment);
}

absl::Status RankEngine::Reserve(StateImage* image, absl::Status* outcome) {
  const absl::Status reserved = image->Reserve(options_.kernels);
  if (!absl::IsResourceExhausted(reserved)) return reserved;
  *outcome = reserved;
  return absl::OkStatus();
}

absl::Status RankEngine::BeginStaging(bool first, absl::Status* outcome) {
  StateImage* image = staged_image();
  if (image == nullptr) {
    if (first) optimizer_.BeginInitial();
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Reserve(image, outcome));
  if (!outcome->ok()) return absl::OkStatus();
  if (!first) return image->Pull(step_ % 2, options_.kernels);
  image->Clear();
  return absl::OkStatus();
}

void RankEngine::CloseGathered() {
  for (size_t unit = 0; unit < unit_states_.size(); ++unit) {
    options_.control->units[unit].gathered_for_step.store(0, std::memory_order_release);
    options_.control->units[unit].gathered_window.store(0, std::memory_order_release);
  }
}

absl::Status RankEngine::TakeBackPublished() {
  if (std::exchange(published_ahead_, -1) >= 0) {
    optimizer_.Publish(step_);
    RETURN_IF_ERROR(options_.kernels->Finish());
    RETURN_IF_ERROR(FaultPoint("load.take-back"));
    PublishApplied(options_.group, LocalIndex(), step_);
  }
  // Peers may have published where this rank has not; trainers have windows that nothing else would
  // wait for.
  return AwaitPeersAt(step_);
}

absl::Status RankEngine::Load() {
  const std::string request = TakeRequest();
  const bool first = options_.control->initialized.load() == 0;
  const int64_t number =
      options_.recorder->Enqueued(OrderStep(), order_.sequence(), OpKind::kLoad, -1, 0);
  RETURN_IF_ERROR(AwaitReductions());
  RETURN_IF_ERROR(Ordered(OpKind::kLoad, -1, 0, DType::kFp32));
  options_.recorder->Started(number);
  for (std::vector<int64_t>& updates : early_updates_) updates.clear();
  staged_.assign(staged_.size(), 0);
  const int64_t version = first ? 0 : step_ + 1;
  RETURN_IF_ERROR(AwaitHold());
  absl::Status outcome;
  RETURN_IF_ERROR(BeginStaging(first, &outcome));
  StateImage* image = staged_image();
  LoadTarget target({&optimizer_, image, options_.kernels, /*publishes=*/!OnDevice(),
                     options_.group, LocalIndex(), version, first});
  if (!first && !OnDevice()) CloseGathered();
  LoadedState state = {first, optimizer_.Moments(), &target, std::nullopt, {}};
  if (!first) {
    state.before =
        LoadProgress(*options_.group, options_.updates, step_, options_.config->groups.size());
  }
  std::string reply;
  const absl::Status loaded = options_.files->Load(request, &state, &reply, &outcome);
  target.Finish();
  RETURN_IF_ERROR(loaded);
  RETURN_IF_ERROR(Interruption());
  published_ahead_ = target.has_published() && !first ? version : -1;
  if (image != nullptr && outcome.ok()) RETURN_IF_ERROR(image->Push(version % 2, options_.kernels));
  Reply(std::move(reply));
  if (outcome.ok() && options_.buffers != nullptr) {
    for (const auto& [buffer, bytes] : state.buffers)
      options_.buffers->Load(version, buffer, bytes);
  }
  if (outcome.ok() && !first) {
    return CommitStaged(OpKind::kLoad, number, StagedArrays(staged_.size(), kAllArrays),
                        state.progress);
  }
  options_.recorder->Done(number);
  if (!outcome.ok()) {
    if (!first) RETURN_IF_ERROR(TakeBackPublished());
    PublishResult(outcome, 0);
    return absl::OkStatus();
  }
  if (!target.has_published()) optimizer_.PublishInitial();
  RETURN_IF_ERROR(options_.kernels->Finish());
  if (state.progress.has_value()) {
    initial_progress_.step = state.progress->step;
    initial_progress_.update_counts = state.progress->update_counts;
    options_.group->ranks[LocalIndex()].has_momentum.store(1);
  }
  return FinishInitialize();
}

}  // namespace tessera
