#include "tessera/checkpoint.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "checkpoint/manifest/existing_checkpoint.h"
#include "checkpoint/parts/checkpoint_part.h"
#include "checkpoint/storage/storage_path.h"
#include "client/checkpoint/load_request.h"
#include "client/session/state_access.h"
#include "client/session/tensor_codec.h"
#include "job/job_codec.h"
#include "proto/checkpoint.pb.h"

namespace tessera {
namespace {

ParamGroup DecodeGroup(const v1::ParamGroup& from) {
  ParamGroup group;
  static_cast<HyperParameters&>(group) = DecodeHyperParameters(from);
  group.parameter_names.assign(from.parameter_names().begin(), from.parameter_names().end());
  return group;
}

// What is the trainer's own.
void EncodeContents(const CheckpointContents& contents, Session* session,
                    v1::SaveRequest* request) {
  if (contents.buffers.empty()) {
    AddTrainerTensors(session, request);
  } else if (session->rank() == 0) {
    // Rank 0's are saved, so the others send none.
    EncodeTensors(contents.buffers, TensorValues::kIncluded, request->mutable_buffers());
  }
  if (contents.trainer_state.size() > kMaxTrainerStateBytes) {
    // Sent as a refusal, so that all ranks get the error together.
    request->set_refusal(absl::StrCat("trainer state of ", contents.trainer_state.size(),
                                      " bytes, more than ", kMaxTrainerStateBytes));
  } else {
    request->set_trainer_state(contents.trainer_state);
  }
}

// What this rank would replace.
absl::Status CheckNothingIsReplaced(const Session& session, const std::string& path,
                                    bool in_parts) {
  // The executors refuse a path that is neither absolute nor a storage's.
  const absl::StatusOr<std::string> plain = PlainPath(path);
  // In parts each rank replaces a folder of its own; otherwise rank 0 looks for all of them.
  const bool looks = (in_parts || session.rank() == 0) && plain.ok() && IsAbsolutePath(*plain);
  if (!looks) return absl::OkStatus();
  return CheckNoCheckpointAt(in_parts ? absl::StrCat(*plain, "/", PartFolderName(session.rank()))
                                      : *plain);
}

absl::StatusOr<CheckpointContents> ContentsOf(const WantedContents& contents, int64_t step) {
  // An exception must not leave the other ranks waiting in the save.
  try {
    return contents(step);
  } catch (...) {  // The trainer's; the step that it is in is taken.
    return absl::UnknownError("the trainer's code threw an exception");
  }
}

}  // namespace

absl::Status SaveCheckpoint(Session* session, const std::string& path,
                            const CheckpointContents& contents, const SaveOptions& options) {
  v1::SaveRequest request;
  SetSpec({SaveContent::kCheckpoint, path, options, /*root=*/""}, &request);
  EncodeContents(contents, session, &request);
  if (!options.overwrite) {
    const absl::Status status = CheckNothingIsReplaced(*session, path, options.in_parts);
    // Not returned: the other ranks wait in the operation.
    if (!status.ok()) request.set_refusal(status.ToString());
  }
  return StateAccess(session).Call(OpKind::kSave, request.SerializeAsString()).status();
}

void OnSaveRequest(Session* session, WantedContents contents) {
  StateAccess(session).OnWantedSave([session, contents = std::move(contents)](int64_t number) {
    v1::SaveRequest request;
    request.set_request_number(number);
    // Called within the step that was voted to be saved.
    const absl::StatusOr<CheckpointContents> own = ContentsOf(contents, session->next_step() - 1);
    if (own.ok()) {
      EncodeContents(*own, session, &request);
    } else {
      request.set_refusal(own.status().ToString());
    }
    return request.SerializeAsString();
  });
}

absl::StatusOr<SaveStatus> GetSaveStatus(Session* session) {
  ASSIGN_OR_RETURN(const std::string bytes, StateAccess(session).Call(OpKind::kSaveStatus, ""));
  v1::SaveStatus reply;
  if (!reply.ParseFromString(bytes)) return absl::InternalError("the save's status is malformed");
  SaveStatus status;
  status.path = reply.path();
  status.running = reply.running();
  status.written_bytes = reply.written_bytes();
  status.all_bytes = reply.all_bytes();
  status.outcome = absl::Status(static_cast<absl::StatusCode>(reply.code()), reply.message());
  return status;
}

absl::Status CancelSave(Session* session) {
  return StateAccess(session).Call(OpKind::kCancelSave, "").status();
}

absl::Status AwaitSave(Session* session) {
  constexpr absl::Duration kLookAgain = absl::Milliseconds(5);
  while (true) {
    ASSIGN_OR_RETURN(const SaveStatus status, GetSaveStatus(session));
    if (status.path.empty())
      return absl::FailedPreconditionError("there is no save in the background");
    if (!status.running) return status.outcome;
    // A message to the executor each time, so not more often.
    absl::SleepFor(kLookAgain);
  }
}

absl::StatusOr<LoadedCheckpoint> LoadCheckpoint(Session* session, const std::string& path,
                                                const LoadCheckpointOptions& options) {
  v1::LoadRequest request;
  // As in LoadModel: a path that this changes is refused where it is opened.
  request.set_path(PrintableUtf8(path));
  request.set_strict(options.strict);
  request.set_is_checkpoint(true);
  request.set_model_only(options.model_only);
  request.set_optimizer_only(options.optimizer_only);
  EncodeNames(options.names, &request);
  // Buffers that the caller names are for the caller, not for the session's model.
  const bool takes_own = options.buffers.empty() && !options.optimizer_only;
  if (takes_own) AddTrainerTensors(session, &request);
  EncodeTensors(options.buffers, TensorValues::kOmitted, request.mutable_buffers());
  ASSIGN_OR_RETURN(const std::string bytes,
                   StateAccess(session).CallToWrite(OpKind::kLoad, request.SerializeAsString()));
  v1::LoadReply reply;
  if (!reply.ParseFromString(bytes)) return absl::InternalError("the load's reply is malformed");
  LoadedCheckpoint loaded;
  loaded.missing.assign(reply.missing().begin(), reply.missing().end());
  loaded.unexpected.assign(reply.unexpected().begin(), reply.unexpected().end());
  if (takes_own) {
    RETURN_IF_ERROR(TakeTrainerTensors(session, reply));
  } else {
    ASSIGN_OR_RETURN(loaded.buffers, DecodeTensors(reply.buffers()));
  }
  loaded.step = reply.step();
  loaded.saved_world_size = reply.saved_world_size();
  for (const v1::ParamGroup& group : reply.groups()) loaded.groups.push_back(DecodeGroup(group));
  loaded.trainer_state = reply.trainer_state();
  return loaded;
}

}  // namespace tessera
