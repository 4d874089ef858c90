#include "coordinator/service/save_codec.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "base/wall_time.h"
#include "checkpoint/storage/storage_path.h"
#include "coordinator/service/field_checks.h"
#include "job/save_spec_codec.h"
#include "job/worker_events.h"

namespace tessera::coordinator {
namespace {

constexpr size_t kMaxPathBytes = 4096;
constexpr int64_t kMaxExpiresInMs = int64_t{366} * 24 * 3600 * 1000;

absl::Status Invalid(absl::string_view why) { return absl::InvalidArgumentError(why); }

// Refuses what a rank would refuse.
absl::StatusOr<SaveSpec> DecodeRequested(const v1::SaveSpec& requested) {
  ASSIGN_OR_RETURN(const std::string path, PlainPath(requested.path()));
  if (!IsAbsolutePath(path) || path.back() == '/' || path.size() > kMaxPathBytes) {
    return Invalid(absl::StrCat("path '", absl::CHexEscape(Truncated(path, 80)),
                                "': must be the absolute path of a folder, of at most ",
                                kMaxPathBytes, " bytes"));
  }
  ASSIGN_OR_RETURN(SaveSpec spec, DecodeSaveSpec(requested));
  if (spec.content != SaveContent::kCheckpoint)
    return Invalid("is_model: only a checkpoint can be requested");
  spec.path = path;
  return spec;
}

v1::SaveState EncodeState(SaveState state) {
  switch (state) {
    case SaveState::kWaiting:
      return v1::SAVE_STATE_WAITING;
    case SaveState::kSaving:
      return v1::SAVE_STATE_SAVING;
    case SaveState::kEnded:
      return v1::SAVE_STATE_ENDED;
  }
  return v1::SAVE_STATE_UNSPECIFIED;
}

v1::SaveFate EncodeFate(SaveFate fate) {
  switch (fate) {
    case SaveFate::kNone:
      return v1::SAVE_FATE_UNSPECIFIED;
    case SaveFate::kKept:
      return v1::SAVE_FATE_KEPT;
    case SaveFate::kReplaced:
      return v1::SAVE_FATE_REPLACED;
    case SaveFate::kRemoved:
      return v1::SAVE_FATE_REMOVED;
  }
  return v1::SAVE_FATE_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<RequestSaveEvent> Decode(const v1::RequestSaveRequest& request) {
  RETURN_IF_ERROR(CheckRequestId(request.request_id()));
  RETURN_IF_ERROR(CheckJobId(request.job_id()));
  ASSIGN_OR_RETURN(SaveSpec spec, DecodeRequested(request.spec()));
  if (request.expires_in_ms() < 0 || request.expires_in_ms() > kMaxExpiresInMs)
    return Invalid(absl::StrCat("expires_in_ms ", request.expires_in_ms(), ": not within a year"));
  RequestSaveEvent event = {request.request_id(), JobId(request.job_id()), std::move(spec),
                            absl::InfiniteDuration()};
  if (request.expires_in_ms() > 0) event.expires_in = absl::Milliseconds(request.expires_in_ms());
  return event;
}

absl::StatusOr<SaveReport> DecodeSaveReport(const v1::SaveReport& report) {
  RETURN_IF_ERROR(CheckJobId(report.job_id()));
  RETURN_IF_ERROR(CheckSaveReport(report));
  SaveReport decoded;
  switch (report.phase()) {
    case v1::SaveReport::BEGUN:
      decoded.phase = SaveReport::Phase::kBegun;
      break;
    case v1::SaveReport::WRITING:
      decoded.phase = SaveReport::Phase::kWriting;
      break;
    default:
      decoded.phase = SaveReport::Phase::kEnded;
  }
  decoded.job = JobId(report.job_id());
  decoded.generation = Generation(report.generation());
  decoded.epoch = Epoch(report.epoch());
  decoded.rank = Rank(report.rank());
  decoded.ordinal = report.ordinal();
  decoded.number = report.number();
  decoded.spec = DecodeCheckpointSpec(report.spec());
  decoded.spec.path = std::string(Utf8Prefix(report.spec().path(), kMaxPathBytes));
  decoded.step = Step(report.step());
  decoded.written_bytes = report.written_bytes();
  decoded.all_bytes = report.all_bytes();
  decoded.took = absl::Milliseconds(report.took_ms());
  decoded.size_bytes = report.size_bytes();
  // Cut between characters, because protobuf's strings are UTF-8.
  decoded.outcome = absl::Status(static_cast<absl::StatusCode>(report.code()),
                                 Utf8Prefix(report.message(), kMaxReasonBytes));
  decoded.removed.assign(report.removed().begin(), report.removed().end());
  return decoded;
}

v1::Save Encode(const JobId& job, const SaveView& view) {
  const Save& save = view.save;
  v1::Save encoded;
  encoded.set_job_id(job.value());
  encoded.set_number(save.number);
  encoded.set_requested(save.requested());
  *encoded.mutable_spec() = EncodeSaveSpec(save.spec);
  encoded.set_state(EncodeState(save.state));
  if (save.requested())
    encoded.set_requested_unix_ms(absl::ToUnixMillis(ToWallTime(save.requested_at)));
  if (save.expires_at != absl::InfiniteFuture())
    encoded.set_expires_unix_ms(absl::ToUnixMillis(ToWallTime(save.expires_at)));
  encoded.set_tries(save.tries);
  encoded.set_last_failure(save.last_failure);
  encoded.set_cancel_requested(save.cancelled);
  encoded.set_waits_for(view.waits_for);
  encoded.set_written_bytes(view.written_bytes);
  encoded.set_all_bytes(view.all_bytes);
  encoded.set_step(save.step.value());
  if (save.state != SaveState::kEnded) return encoded;
  encoded.set_ended_unix_ms(absl::ToUnixMillis(ToWallTime(save.ended_at)));
  encoded.set_took_ms(absl::ToInt64Milliseconds(save.took));
  encoded.set_size_bytes(save.size_bytes);
  encoded.set_code(save.outcome.raw_code());
  encoded.set_message(std::string(save.outcome.message()));
  encoded.set_fate(EncodeFate(save.fate));
  encoded.set_ended_sequence(save.ended_sequence);
  return encoded;
}

}  // namespace tessera::coordinator
