#include "worker/engine/file_operations.h"

#include <optional>
#include <string>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "worker/engine/agreed_error.h"
#include "worker/engine/made_saves.h"

namespace tessera {
namespace {

// One bit for each StateArray: a load sets or keeps all of them, so nothing is left to stage.
constexpr uint32_t kAllArrays = 7;

// Want of memory is this rank's own error, for the ranks to agree on. Any other ends the epoch.
bool EndsEpoch(const absl::Status& reserved) {
  return !reserved.ok() && !absl::IsResourceExhausted(reserved);
}

}  // namespace

FileOperations::FileOperations(const EngineParts& parts, StateWrites* writes)
    : context_(parts.context),
      early_(parts.early),
      reductions_(parts.reductions),
      gathers_(parts.gathers),
      versions_(parts.versions),
      writes_(*writes) {}

TrainingProgress FileOperations::Progress() const {
  const RankEngineOptions& options = context_.options;
  return LoadProgress(*options.group, options.updates, context_.order.step(),
                      options.config->groups.size());
}

void FileOperations::Tell(OpKind kind) {
  StateFiles* files = context_.options.files;
  if (kind == OpKind::kCancelSave) files->CancelSave();
  if (kind == OpKind::kReadProgress) {
    context_.trainer.Reply(EncodeProgress(Progress()));
  } else {
    context_.trainer.Reply(kind == OpKind::kSaveStatus ? files->SaveStatus() : "");
  }
  context_.trainer.PublishResult(absl::OkStatus());
}

void FileOperations::Note(OpKind kind) {
  // The outcome of a save comes before its reply, which an epoch's end may still keep from the
  // trainer.
  if (!told_save_.has_value() || kind == OpKind::kReceive) return;
  RankRecord& record = context_.record();
  // Not that of now: the successor of one that died in the save does not know of it.
  NoteKnown(&record.known_saves, told_save_->attachment, context_.order.step(), told_save_->number);
  told_save_.reset();
}

bool FileOperations::TellIfMade(uint64_t save) {
  const RankRecord& record = context_.record();
  const std::optional<int> made =
      FindUnknown(context_.options.group->saves, record.known_saves, record.attachment.load(),
                  context_.order.step(), save);
  if (!made.has_value()) return false;
  TESSERA_LOG(INFO, "rank {}: a save of step {} is not made again: all ranks had made it",
              context_.options.rank.value(), context_.order.step());
  told_save_ = ToldSave{*made, record.attachment.load()};
  context_.trainer.Reply("");
  context_.trainer.PublishResult(absl::OkStatus());
  return true;
}

absl::StatusOr<std::string> FileOperations::SaveOnAll(const std::string& request) {
  const RankEngineOptions& options = context_.options;
  if (!context_.initialized())
    // All ranks lack them alike, so the error counts as agreed and ends no epoch.
    return AsAgreed(absl::FailedPreconditionError("not saved: the job has no initial values yet"));
  const int64_t step = context_.order.step();
  AddressableState& saved = versions_.saved();
  // The next save would overwrite the copy that it reads.
  if (saved.is_copy()) options.files->AwaitSaved();  // A background save reads it as it writes.
  const absl::Status reserved = saved.Reserve();
  if (EndsEpoch(reserved)) return reserved;
  if (reserved.ok()) RETURN_IF_ERROR(saved.Read(step));
  const auto values = [&](StateArray array, const ShardSegment& segment) {
    return ConstValues(saved.At(array, segment, step));
  };
  const SavedState state = {step, Progress(), context_.optimizer.Moments(), values,
                            /*stays=*/saved.is_copy()};
  return options.files->Save(request, state, reserved);
}

absl::Status FileOperations::Save() {
  const RankEngineOptions& options = context_.options;
  const std::string request = context_.trainer.TakeRequest();
  const uint64_t save = options.files->IdOfSave(request);
  // Its trainer may die and be replaced meanwhile.
  const int64_t attachment = context_.record().attachment.load();
  if (save != 0 && TellIfMade(save)) return absl::OkStatus();
  // Before the ranks meet: none of them can note this one yet.
  const int made = CountSaves(options.group->saves, context_.order.step());
  const int64_t number = options.recorder->Enqueued(
      context_.order.StepUnderWay(), context_.order.sequence(), OpKind::kSave, -1, 0);
  RETURN_IF_ERROR(reductions_.Await());
  // In the order, since saving is collective: a rank whose trainer does not save is named.
  RETURN_IF_ERROR(context_.order.Issue(OpKind::kSave, -1, 0, options.config->compute_dtype));
  options.recorder->Started(number);
  const absl::StatusOr<std::string> reply = SaveOnAll(request);
  if (!reply.ok() && !IsAgreed(reply.status())) return reply.status();
  RETURN_IF_ERROR(FaultPoint("engine.saved"));
  if (reply.ok() && save != 0) {
    // Before any trainer can be told.
    NoteSave(&options.group->saves, context_.order.step(), made, save);
    told_save_ = ToldSave{made, attachment};
  }
  // A stop during the save makes its outcome void: the epoch's reason is what counts.
  RETURN_IF_ERROR(context_.interrupt.Check());
  options.recorder->Done(number);
  context_.trainer.Reply(reply.ok() ? *reply : "");
  context_.trainer.PublishResult(reply.status());
  return absl::OkStatus();
}

absl::Status FileOperations::Load() {
  const RankEngineOptions& options = context_.options;
  const std::string request = context_.trainer.TakeRequest();
  const bool first = !context_.initialized();
  const int64_t number = options.recorder->Enqueued(
      context_.order.StepUnderWay(), context_.order.sequence(), OpKind::kLoad, -1, 0);
  RETURN_IF_ERROR(reductions_.Await());
  RETURN_IF_ERROR(context_.order.Issue(OpKind::kLoad, -1, 0, DType::kFp32));
  options.recorder->Started(number);
  // What backward has written into the next version is overwritten by the load.
  early_.ForgetAll();
  versions_.ForgetStaged();
  const int64_t version = first ? 0 : context_.order.step() + 1;
  // A reader may hold the version that the load overwrites.
  RETURN_IF_ERROR(versions_.AwaitRoom());
  const absl::Status reserved = versions_.next().Reserve();
  if (EndsEpoch(reserved)) return reserved;
  if (reserved.ok()) RETURN_IF_ERROR(versions_.BeginStaging(first));
  const bool publishes = !context_.OnDevice();
  LoadTarget target({&context_.optimizer, &versions_.next(), options.kernels, publishes,
                     options.group, context_.LocalIndex(), version, first});
  // Trainers must not read ahead what is about to be overwritten under them.
  if (!first && publishes) gathers_.CloseGathered();
  LoadedState state = {first, context_.optimizer.Moments(), &target, std::nullopt, {}};
  if (!first) state.before = Progress();
  const absl::StatusOr<std::string> reply = options.files->Load(request, &state, reserved);
  // In any case: streamed stores must be visible before anything is published or taken back.
  target.Finish();
  if (!reply.ok() && !IsAgreed(reply.status())) return reply.status();
  RETURN_IF_ERROR(context_.interrupt.Check());
  // Known even if EndWrite fails: the epoch ends then, and the next one begins by publishing
  // again.
  versions_.SetPublishedAhead(target.has_published() && !first ? version : -1);
  if (reply.ok()) RETURN_IF_ERROR(versions_.next().EndWrite(version));
  context_.trainer.Reply(reply.ok() ? *reply : "");
  return FinishLoad(number, first, target, state, reply.status());
}

absl::Status FileOperations::FinishLoad(int64_t number, bool first, const LoadTarget& target,
                                        const LoadedState& state, const absl::Status& outcome) {
  const int64_t version = first ? 0 : context_.order.step() + 1;
  // Only once all ranks have loaded: buffers of a load that failed must not be staged.
  if (outcome.ok()) {
    for (const auto& [buffer, bytes] : state.buffers)
      context_.options.buffers->Load(version, buffer, bytes);
    if (!first) {
      return writes_.Commit(OpKind::kLoad, number, StagedArrays(context_.num_units(), kAllArrays),
                            state.progress);
    }
  }
  context_.options.recorder->Done(number);
  if (outcome.ok()) return FinishFirstLoad(target, state);
  // What this rank has published is of a version that nobody decided.
  if (!first) RETURN_IF_ERROR(writes_.TakeBackPublished());
  context_.trainer.PublishResult(outcome);
  return absl::OkStatus();
}

absl::Status FileOperations::FinishFirstLoad(const LoadTarget& target, const LoadedState& state) {
  if (!target.has_published()) context_.optimizer.PublishInitial();
  RETURN_IF_ERROR(context_.options.kernels->Finish());
  if (state.progress.has_value()) writes_.SetInitialProgress(*state.progress);
  return writes_.FinishInitialize();
}

}  // namespace tessera
