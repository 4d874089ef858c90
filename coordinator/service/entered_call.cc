#include "coordinator/service/entered_call.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/steady_time.h"

namespace tessera::coordinator {
namespace {

// What is not longer costs no more than the call itself.
constexpr int64_t kShortBytes = 64 << 10;

}  // namespace

std::string EnteredCall::Who() const { return absl::StrCat("client '", identity_, "'"); }

absl::Status EnteredCall::RunRead(absl::FunctionRef<bool()> read, absl::FunctionRef<int64_t()> size,
                                  int64_t max_bytes) {
  const absl::Time deadline = SteadyNow() + times_.request;
  const auto cancelled = [this] { return context_->IsCancelled(); };
  // Workers wait for nobody.
  if (kind_ != CallKind::kOfWorker) {
    ASSIGN_OR_RETURN(reading_,
                     limits_->TakeTurn(identity_, CallLimits::Of::kReading, deadline, cancelled));
  }
  {
    const CallWatch::Span span(
        watch_, context_, deadline,
        absl::DeadlineExceededError(absl::StrCat(Who(), " has not sent the request within ",
                                                 absl::FormatDuration(times_.request))),
        /*may_be_large=*/true);
    if (!read()) {
      RETURN_IF_ERROR(span.Ended());
      return absl::InvalidArgumentError("the call ended before its first message");
    }
  }
  const int64_t bytes = size();
  if (bytes > max_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request has ", bytes, " bytes, and may have ", max_bytes));
  }
  if (kind_ == CallKind::kShort && bytes > kShortBytes) return absl::OkStatus();
  reading_ = nullptr;
  return kind_ == CallKind::kWaiting ? place_.Hold(bytes) : absl::OkStatus();
}

absl::Status EnteredCall::TakeReplyTurn(int64_t bytes) {
  if (bytes <= kShortBytes) return absl::OkStatus();
  reading_ = nullptr;  // A reply that nobody takes keeps none of the client's requests waiting.
  ASSIGN_OR_RETURN(
      replying_, limits_->TakeTurn(identity_, CallLimits::Of::kReplying, SteadyNow() + times_.reply,
                                   [this] { return context_->IsCancelled(); }));
  return absl::OkStatus();
}

absl::Status EnteredCall::RunWrite(absl::FunctionRef<bool()> write) {
  const CallWatch::Span span(
      watch_, context_, SteadyNow() + times_.reply,
      absl::DeadlineExceededError(absl::StrCat(Who(), " has not taken the reply within ",
                                               absl::FormatDuration(times_.reply))),
      /*may_be_large=*/replying_ != nullptr);
  if (write()) return absl::OkStatus();
  RETURN_IF_ERROR(span.Ended());
  return absl::CancelledError("the caller is gone");
}

}  // namespace tessera::coordinator
