#include "worker/memory/map_claim.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

constexpr absl::string_view kMap = "map|";  // A trainer's ticket has three of these.
constexpr absl::string_view kGiven = "ok";

}  // namespace

std::string MapClaimText(absl::string_view session) { return absl::StrCat(kMap, session); }

bool IsMapClaim(absl::string_view text) {
  return absl::ConsumePrefix(&text, kMap) && !absl::StrContains(text, '|');
}

absl::string_view SessionOf(absl::string_view claim) { return absl::StripPrefix(claim, kMap); }

std::string MapReplyText(const absl::Status& status) {
  if (status.ok()) return std::string(kGiven);
  return absl::StrCat(status.raw_code(), "|", status.message());
}

absl::Status ParseMapReply(absl::string_view text) {
  if (text == kGiven) return absl::OkStatus();
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits('|', 1));
  int code;
  const bool has_code = absl::SimpleAtoi(parts.first, &code) && code > 0 &&
                        code <= static_cast<int>(absl::StatusCode::kUnauthenticated);
  if (!has_code) return absl::UnavailableError(absl::StrCat("the worker gave nothing: ", text));
  return absl::Status(static_cast<absl::StatusCode>(code), parts.second);
}

}  // namespace tessera
