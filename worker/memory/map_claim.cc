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
constexpr absl::string_view kQuery = "\xffmap ";
constexpr absl::string_view kGiven = "ok";
constexpr absl::string_view kAnswer = "ok|";
constexpr size_t kMaxAnswerBytes = 48 << 10;  // With less than a packet has room for.

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

std::string MapQueryText(absl::string_view query) { return absl::StrCat(kQuery, query); }

bool IsMapQuery(absl::string_view text) { return absl::StartsWith(text, kQuery); }

absl::string_view QueryOf(absl::string_view text) { return absl::StripPrefix(text, kQuery); }

std::string MapAnswerText(absl::string_view answer) { return absl::StrCat(kAnswer, answer); }

bool IsShortAnswer(absl::string_view answer) { return answer.size() <= kMaxAnswerBytes; }

absl::StatusOr<absl::string_view> ParseMapAnswer(absl::string_view text) {
  if (absl::ConsumePrefix(&text, kAnswer)) return text;
  const absl::Status status = ParseMapReply(text);
  if (!status.ok()) return status;
  return absl::string_view();
}

absl::StatusOr<std::string> DescriptorSocketOf(absl::string_view worker_address) {
  absl::string_view path = worker_address;
  if (!absl::ConsumePrefix(&path, "unix:")) {
    return absl::InvalidArgumentError(absl::StrCat("worker address '", worker_address,
                                                   "' is no Unix socket: unix:FOLDER/worker.sock"));
  }
  absl::ConsumePrefix(&path, "//");  // Of "unix:///...".
  const size_t name = path.rfind('/');
  const absl::string_view folder = name == path.npos ? "" : path.substr(0, name + 1);
  return absl::StrCat(folder, kDescriptorSocketName);
}

}  // namespace tessera
