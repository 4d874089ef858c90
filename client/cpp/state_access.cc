#include "client/cpp/state_access.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cpp/tensor_codec.h"
#include "proto/checkpoint.pb.h"

namespace tessera {

absl::Status StateAccess::Send(absl::string_view message) {
  while (!message.empty()) {
    Op op;
    op.kind = OpKind::kSend;
    op.message_bytes = std::min(message.size(), kPieceBytes);
    memcpy(session_->page()->piece, message.data(), op.message_bytes);
    RETURN_IF_ERROR(session_->SubmitAndAwait(op));
    message.remove_prefix(op.message_bytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> StateAccess::Receive() {
  const ControlPage* page = session_->page();
  std::string reply;
  size_t bytes = kPieceBytes;
  while (bytes == kPieceBytes) {
    Op op;
    op.kind = OpKind::kReceive;
    RETURN_IF_ERROR(session_->SubmitAndAwait(op));
    bytes = std::min<size_t>(page->piece_bytes.load(std::memory_order_relaxed), kPieceBytes);
    reply.append(page->piece, bytes);
  }
  return reply;
}

absl::StatusOr<std::string> StateAccess::Call(OpKind kind, absl::string_view request) {
  RETURN_IF_ERROR(Send(request));
  RETURN_IF_ERROR(session_->Submit(kind, -1));
  RETURN_IF_ERROR(session_->AwaitResult(kind));
  RETURN_IF_ERROR(session_->ResultStatus());
  return Receive();
}

absl::StatusOr<std::string> StateAccess::CallToWrite(OpKind kind, absl::string_view request) {
  RETURN_IF_ERROR(session_->CloseFullWindows());
  return Call(kind, request);
}

absl::Status StateAccess::ReadArray(int unit, StateArray array, const Session::Reader& read) {
  RETURN_IF_ERROR(session_->ClaimSlot(unit));
  if (!session_->initialized()) {
    return absl::FailedPreconditionError(
        absl::StrCat("job '", session_->options_.job_id, "' has no initial values yet"));
  }
  Op op;
  op.kind = OpKind::kRead;
  op.unit = unit;
  op.array = static_cast<uint32_t>(array);
  RETURN_IF_ERROR(session_->SubmitSlot(op));
  RETURN_IF_ERROR(session_->AwaitSlot(unit));
  const std::vector<PlacedParameter>& parameters = session_->layout_.units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) read(p, session_->SlotValues(unit, parameters[p]));
  return absl::OkStatus();
}

absl::Status StateAccess::StageArray(int unit, StateArray array, const Session::Filler& fill) {
  return session_->StageValues(OpKind::kWrite, unit, fill, static_cast<uint32_t>(array));
}

absl::Status StateAccess::StageSlice(int unit, StateArray array,
                                     absl::FunctionRef<absl::Status(Values slice)> fill) {
  RETURN_IF_ERROR(session_->ClaimSlot(unit));
  const ElementRange slice = session_->layout_.units[unit].shards.RangeOf(Rank(session_->rank()));
  RETURN_IF_ERROR(fill(session_->SlotValues(unit, slice.begin, slice.size())));
  Op op;
  op.kind = OpKind::kWrite;
  op.unit = unit;
  op.array = static_cast<uint32_t>(array);
  return session_->SubmitSlot(op);
}

DialOptions StateAccess::coordinator() const {
  const SessionOptions& options = session_->options_;
  return {options.coordinator_address, options.tls, options.insecure_connect};
}

absl::Status StateAccess::FinishState(const TrainingProgress& progress) {
  RETURN_IF_ERROR(session_->CloseFullWindows());
  RETURN_IF_ERROR(Send(EncodeProgress(progress)));
  Op op;
  op.kind = OpKind::kFinishWrite;
  op.sets_moments = 1;
  RETURN_IF_ERROR(session_->Submit(op));
  RETURN_IF_ERROR(session_->AwaitResult(OpKind::kFinishWrite));
  return session_->ResultStatus();
}

void StateAccess::SaveWanted() {
  const int64_t wish = session_->page()->result.wanted_save;
  if (wish == 0) return;
  std::string bytes;
  if (session_->wanted_save_request_ != nullptr) {
    bytes = session_->wanted_save_request_(wish);
  } else {
    v1::SaveRequest request;
    request.set_is_checkpoint(true);
    request.set_wish(wish);
    AddTrainerTensors(session_, &request);
    bytes = request.SerializeAsString();
  }
  const absl::Status status = Call(OpKind::kSave, bytes).status();
  const bool all_have_it = status.ok() || session_->agreed_error_ || session_->EpochIsOver();
  session_->agreed_error_ = false;  // Not the step's.
  // Its result would be taken for that of what comes next.
  if (!all_have_it) (void)session_->Fail(status);
}

absl::Status Session::Save(const std::string& path) {
  v1::SaveRequest request;
  request.set_path(path);
  AddTrainerTensors(this, &request);
  return StateAccess(this).Call(OpKind::kSave, request.SerializeAsString()).status();
}

}  // namespace tessera
