#include "checkpoint/strict_json.h"

#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using Json = nlohmann::json;

// Sees each event of a parse and notes the first thing that is refused.
class Watch {
 public:
  void operator()(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth > kMaxJsonDepth && error_.empty())
      error_ = absl::StrCat("nested deeper than ", kMaxJsonDepth);
    if (event == Json::parse_event_t::object_start) keys_.emplace_back();
    if (event == Json::parse_event_t::object_end) keys_.pop_back();
    if (event == Json::parse_event_t::key &&
        !keys_.back().insert(parsed.get_ref<const std::string&>()).second && error_.empty()) {
      error_ = absl::StrCat("'", parsed.get_ref<const std::string&>(), "': the key is there twice");
    }
  }
  const std::string& error() const { return error_; }

 private:
  std::vector<std::set<std::string>> keys_;  // Of the objects that are open.
  std::string error_;
};

}  // namespace

absl::StatusOr<Json> ParseStrictJsonObject(absl::string_view text) {
  // The library takes a NUL for the end of the text, and what is behind it would not be looked at.
  if (text.find('\0') != absl::string_view::npos) return absl::InvalidArgumentError("a NUL in it");
  // RFC 8259 forbids to write one; the library would pass over it, and other readers do not.
  if (absl::StartsWith(text, "\xef\xbb\xbf"))
    return absl::InvalidArgumentError("a byte order mark in front of it");
  Watch watch;
  Json value = Json::parse(
      text.begin(), text.end(),
      [&](int depth, Json::parse_event_t event, Json& parsed) {
        watch(depth, event, parsed);
        return true;
      },
      /*allow_exceptions=*/false);
  if (!watch.error().empty()) return absl::InvalidArgumentError(watch.error());
  if (value.is_discarded() || !value.is_object())
    return absl::InvalidArgumentError("no JSON object");
  return value;
}

}  // namespace tessera
