#include "coordinator/core/hand_over_state.h"

#include "absl/strings/str_cat.h"

namespace tessera::coordinator {

absl::string_view Name(HandOverPhase phase) {
  switch (phase) {
    case HandOverPhase::kOffered:
      return "OFFERED";
    case HandOverPhase::kAccepted:
      return "ACCEPTED";
    case HandOverPhase::kDone:
      return "DONE";
    case HandOverPhase::kCancelled:
      return "CANCELLED";
  }
  return "?";
}

std::optional<HandOverPhase> NextPhase(HandOverPhase phase, HandOverStep step) {
  switch (step) {
    case HandOverStep::kAccept:
      if (phase == HandOverPhase::kOffered) return HandOverPhase::kAccepted;
      return std::nullopt;
    case HandOverStep::kTakerGone:
      // The taker has not reported the values, so the old job's memory is still there.
      if (phase == HandOverPhase::kAccepted) return HandOverPhase::kOffered;
      return std::nullopt;
    case HandOverStep::kFinish:
      if (phase == HandOverPhase::kAccepted) return HandOverPhase::kDone;
      return std::nullopt;
    case HandOverStep::kCancel:
      // Once a taker has accepted, it may have decided steps, and nothing can take these back.
      if (phase == HandOverPhase::kOffered) return HandOverPhase::kCancelled;
      return std::nullopt;
  }
  return std::nullopt;
}

std::string DescribeHandOver(const HandOver& hand_over) {
  const std::string at = absl::StrCat("handed over at step ", hand_over.step.value());
  if (hand_over.phase == HandOverPhase::kOffered)
    return absl::StrCat(at, ": waits for a job that takes it over");
  return absl::StrCat(at, ": job '", hand_over.taker.value(), "' takes it over");
}

}  // namespace tessera::coordinator
