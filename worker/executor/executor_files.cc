#include "worker/executor/executor_files.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/storage/save_root.h"
#include "checkpoint/storage/storage_path.h"
#include "proto/checkpoint.pb.h"
#include "worker/engine/agreed_error.h"
#include "worker/executor/agreement.h"
#include "worker/executor/load/checkpoint_load.h"
#include "worker/executor/load/load_agreement.h"
#include "worker/executor/load/model_load.h"
#include "worker/executor/save/checkpoint_save.h"
#include "worker/executor/save/checkpoint_slices.h"
#include "worker/executor/save/folder_check.h"
#include "worker/executor/save/model_save.h"
#include "worker/executor/save/part_save.h"
#include "worker/executor/save/save_request.h"

namespace tessera {
namespace {

// All ranks have the request, or an agreed error. `own`: why this rank cannot load.
absl::StatusOr<v1::LoadRequest> ParseOnAll(const std::string& bytes, absl::Status own,
                                           Communicator* communicator) {
  v1::LoadRequest request;
  // Not returned yet: the other ranks wait in AgreeOn.
  if (!request.ParseFromString(bytes))
    own = absl::InvalidArgumentError("the trainer's request is malformed");
  if (!request.refusal().empty()) own = absl::InvalidArgumentError(request.refusal());
  RETURN_IF_ERROR(AgreeOn("request", own, communicator));
  return request;
}

}  // namespace

ExecutorFiles::ExecutorFiles(const ExecutorMemory* memory, int64_t direct_write_bytes,
                             ReportSaving report_saving, ReportError report_error,
                             SaveTracker::Send send_report)
    : memory_(*memory),
      direct_write_bytes_(direct_write_bytes),
      report_saving_(std::move(report_saving)),
      report_error_(std::move(report_error)),
      segments_(SegmentsOf(memory->layout, memory->config, memory->plan, memory->rank)),
      tracker_(std::move(send_report)),
      background_(memory) {}

std::vector<ShardSegment> ExecutorFiles::OwnSegments() const {
  std::vector<ShardSegment> own;
  for (const ShardSegment& segment : segments_) {
    // One of each group of replicas writes: they are equal to the bit.
    if (!memory_.layout.units[segment.unit].shards.IsReplica(memory_.rank)) own.push_back(segment);
  }
  return own;
}

absl::Status ExecutorFiles::CheckTrainersPath(const std::string& path) const {
  // The executor has the worker's rights, a foreign trainer has not: it names paths below the roots
  // only.
  return memory_.had_foreign_trainer() ? CheckBelow(path, memory_.save_roots) : absl::OkStatus();
}

absl::Status ExecutorFiles::CheckRequest(const std::string& bytes, v1::SaveRequest* request) {
  if (!request->ParseFromString(bytes)) {
    request->Clear();
    // Saves of models are not reported, and what this was to save is not known.
    request->mutable_spec()->set_is_model(true);
    return absl::InvalidArgumentError("the trainer's request is malformed");
  }
  // Of a requested save the trainer decides nothing: path and options are the coordinator's.
  RETURN_IF_ERROR(tracker_.Fill(request));
  // Plain before it is compared or reported: ranks must mean the same folder.
  if (request->refusal().empty()) {
    ASSIGN_OR_RETURN(*request->mutable_spec()->mutable_path(), PlainPath(request->spec().path()));
  }
  RETURN_IF_ERROR(CheckSaveRequest(*request));
  // A requested save may go below its own root alone.
  const std::string& root = request->spec().root();
  if (!root.empty()) {
    RETURN_IF_ERROR(CheckBelow(request->spec().path(), {root}));
    return MakeSaveRoot(root);
  }
  // The coordinator has checked a request's path, as far as it can.
  if (request->request_number() != 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckTrainersPath(request->spec().path()));
  if (!memory_.had_foreign_trainer()) return absl::OkStatus();
  for (const std::string& own : memory_.save_roots) {
    if (CheckBelow(request->spec().path(), {own}).ok()) return MakeSaveRoot(own);
  }
  return absl::OkStatus();
}

absl::StatusOr<PriorAttempt> ExecutorFiles::Prepare(const v1::SaveRequest& request,
                                                    const absl::Status& own) {
  const std::string fake =
      FakeText(memory_.config.fake_all_gather, memory_.config.fake_reduce_scatter);
  if (!fake.empty())  // All ranks have this config, so all refuse.
    return AsAgreed(absl::FailedPreconditionError(
        absl::StrCat("not saved: the job's collectives are fake (", fake, ")")));
  // First: a rank whose request is refused has nothing to compare.
  RETURN_IF_ERROR(AgreeOn("request", own, communicator_));
  RETURN_IF_ERROR(CompareRequests(request, communicator_));
  return FindPriorAttempt(request, memory_, communicator_);
}

uint64_t ExecutorFiles::IdOfSave(const std::string& request_bytes) const {
  v1::SaveRequest request;
  // A requested save is tried again by the coordinator, which learns its outcome by itself.
  return request.ParseFromString(request_bytes) && request.request_number() == 0 ? IdOf(request)
                                                                                 : 0;
}

absl::StatusOr<std::string> ExecutorFiles::Save(const std::string& request_bytes,
                                                const SavedState& state, const absl::Status& own) {
  v1::SaveRequest request;
  const int64_t step = state.progress.step;
  // One save at a time: the next one waits for the one before.
  background_.End();
  // Every rank counts every request, refused ones too, so that the ranks' numbers agree.
  tracker_.Next();
  const absl::Status checked = CheckRequest(request_bytes, &request);
  // Errors of this rank go in there: all ranks have to come to the agreement.
  const absl::StatusOr<PriorAttempt> prior = Prepare(request, checked.ok() ? own : checked);
  if (!prior.ok()) {
    tracker_.End(request, step, prior.status(), {});
    return prior.status();
  }
  if (prior->is_made) {
    // An earlier attempt of the same request published it: it is not made twice (docs/adr/0053).
    tracker_.End(request, prior->step, absl::OkStatus(), prior->reply);
    return prior->reply.SerializeAsString();
  }
  // After the agreement: a save that no rank begins is not reported as begun.
  Begin(request, state.progress);
  if (!request.spec().is_model() && !request.spec().in_foreground()) {
    RETURN_IF_ERROR(BeginInBackground(request, prior->request, state));
    return "";
  }
  v1::SaveReply reply;
  const absl::Status outcome = SaveNow(request, prior->request, state, &reply);
  // Also of one that failed: the coordinator must not wait for its end.
  tracker_.End(request, step, outcome, reply);
  RETURN_IF_ERROR(outcome);
  return reply.SerializeAsString();
}

SaveControl ExecutorFiles::Control(const std::string& asked_for) {
  return {&stopped_, &tracker_.cancelled(), [this](int64_t bytes) { tracker_.Wrote(bytes); },
          direct_write_bytes_, asked_for};
}

void ExecutorFiles::Begin(const v1::SaveRequest& request, const TrainingProgress& progress) {
  if (request.spec().is_model()) return;
  int64_t all_bytes = 0;
  for (const CheckpointSlice& slice :
       SlicesToWrite(request, memory_, HasStates(memory_.layout, progress)))
    all_bytes += slice.segment.numel * SizeBytes(slice.segment.dtype);
  tracker_.Begin(request, progress.step, all_bytes);
}

absl::Status ExecutorFiles::SaveNow(const v1::SaveRequest& request, const std::string& asked_for,
                                    const SavedState& state, v1::SaveReply* reply) {
  const bool creates_file = request.spec().in_parts() || memory_.rank.value() == 0;
  // Told before anything is created, so that the supervisor can remove what a dead executor leaves.
  if (creates_file)
    report_saving_(request.spec().in_parts() ? PartPath(request, memory_.rank)
                                             : request.spec().path());
  const absl::Status outcome = Write(request, asked_for, state, reply);
  // Nothing unfinished is left from here on.
  if (creates_file) report_saving_("");
  return outcome;
}

absl::Status ExecutorFiles::Write(const v1::SaveRequest& request, const std::string& asked_for,
                                  const SavedState& state, v1::SaveReply* reply) {
  if (request.spec().is_model())
    return SaveModel(request, memory_.layout, OwnSegments(), state, communicator_, &stopped_,
                     direct_write_bytes_);
  const auto save = request.spec().in_parts() ? SaveParts : SaveCheckpoint;
  return save(request, memory_, InMemory(state), communicator_, Control(asked_for), reply);
}

absl::Status ExecutorFiles::BeginInBackground(const v1::SaveRequest& request,
                                              const std::string& asked_for,
                                              const SavedState& state) {
  const int64_t step = state.progress.step;
  const absl::Status prepared =
      AgreeOn("save", background_.Prepare(request, state, Control(asked_for)), communicator_);
  if (!prepared.ok()) {
    // Also ends what this rank has begun and another has not.
    background_.End();
    tracker_.End(request, step, prepared, {});
    return prepared;
  }
  const bool creates_file = request.spec().in_parts() || memory_.rank.value() == 0;
  const auto report = [this, creates_file](const std::string& path) {
    if (creates_file) report_saving_(path);
  };
  report(request.spec().in_parts() ? PartPath(request, memory_.rank) : request.spec().path());
  const absl::Status started = background_.Start(
      communicator_, [this, report, step](const v1::SaveRequest& saved, const absl::Status& outcome,
                                          const v1::SaveReply& reply) {
        report("");
        tracker_.End(saved, step, outcome, reply);
        // This error aborted the other ranks, which do not know it. Aborted: it is another rank's.
        const bool is_told = outcome.ok() || IsAgreed(outcome) || absl::IsAborted(outcome);
        if (!is_told && !stopped_.load()) report_error_(outcome);
      });
  if (started.ok()) return started;
  report("");
  tracker_.End(request, step, started, {});
  return started;  // An error ends the epoch, and with it the other ranks' saves.
}

absl::StatusOr<std::string> ExecutorFiles::Load(const std::string& request_bytes,
                                                LoadedState* state, const absl::Status& own) {
  // A background save reads the state that the load overwrites.
  background_.End();
  ASSIGN_OR_RETURN(v1::LoadRequest request, ParseOnAll(request_bytes, own, communicator_));
  RETURN_IF_ERROR(CompareRequests(request, communicator_));
  // A path that it refuses is refused, on all ranks, where it is opened.
  if (const auto path = PlainPath(request.path()); path.ok()) request.set_path(*path);
  RETURN_IF_ERROR(AgreeOn("load", CheckTrainersPath(request.path()), communicator_));
  if (request.is_checkpoint()) {
    ASSIGN_OR_RETURN(const v1::LoadReply reply,
                     LoadCheckpoint(request, memory_, state, communicator_, &stopped_));
    return reply.SerializeAsString();
  }
  const absl::StatusOr<std::vector<NamedTensorInfo>> buffers = InfosOf(request.buffers());
  RETURN_IF_ERROR(AgreeOn("load", buffers.status(), communicator_));
  ASSIGN_OR_RETURN(const v1::LoadReply reply,
                   LoadModel(request.path(), RulesOf(request, state->first), *buffers,
                             memory_.layout, segments_, state, communicator_, &stopped_));
  return reply.SerializeAsString();
}

}  // namespace tessera
