#include "coordinator/service/live/worker_failure.h"

#include "absl/strings/str_cat.h"

namespace tessera::coordinator {
namespace {

absl::StatusCode CodeOf(const v1::LiveFailure& failure) {
  switch (const auto code = static_cast<absl::StatusCode>(failure.code())) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kCancelled:
      return code;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kFailedPrecondition;
  }
}

}  // namespace

absl::Status WorkerFailure(const std::string& worker, const v1::LiveFailure& failure) {
  return absl::Status(CodeOf(failure), absl::StrCat("worker '", worker, "': ", failure.message()));
}

}  // namespace tessera::coordinator
