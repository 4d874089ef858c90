#include "worker/memory/map_claim.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr absl::string_view kMap = "map|";
constexpr absl::string_view kAll = "all";
constexpr absl::string_view kNumbers = "numbers";
constexpr absl::string_view kGiven = "ok";
constexpr int kParts = 3;  // A trainer's ticket has more.

}  // namespace

std::string MapClaimText(const MapClaim& claim) {
  return absl::StrCat(kMap, claim.session, "|", claim.only_numbers ? kNumbers : kAll);
}

bool IsMapClaim(absl::string_view text) {
  if (!absl::StartsWith(text, kMap)) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '|');
  return parts.size() == kParts;
}

absl::StatusOr<MapClaim> ParseMapClaim(absl::string_view text) {
  if (!IsMapClaim(text)) return absl::InvalidArgumentError("not a claim of live state");
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '|');
  if (parts[1].empty() || (parts[2] != kAll && parts[2] != kNumbers))
    return absl::InvalidArgumentError("a claim of live state that this worker does not know");
  return MapClaim{std::string(parts[1]), parts[2] == kNumbers};
}

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
