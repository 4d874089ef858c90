#include "job/field_limits.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera {

absl::Status CheckWorkerId(absl::string_view field, absl::string_view id) {
  // Ids become parts of paths, and are written to logs.
  const auto allowed = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-';
  };
  constexpr size_t kMax = 255;
  if (!id.empty() && id.size() <= kMax && std::all_of(id.begin(), id.end(), allowed)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(field, " '", absl::CHexEscape(id.substr(0, 80)),
                                                 "': must be of [A-Za-z0-9._-], 1 to ", kMax,
                                                 " characters"));
}

absl::Status CheckReportedName(absl::string_view name) {
  const auto allowed = [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '_' || c == '-' || c == '/';
  };
  constexpr size_t kMax = 64;
  if (!name.empty() && name.size() <= kMax && std::all_of(name.begin(), name.end(), allowed))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reported value '", absl::CHexEscape(name.substr(0, 80)),
                   "': its name must be of [A-Za-z0-9._/-], 1 to ", kMax, " characters"));
}

absl::Status CheckName(absl::string_view field, absl::string_view name) {
  if (name.size() <= kMaxNameBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, " '", absl::CHexEscape(name.substr(0, 80)),
                                                 "...': longer than ", kMaxNameBytes, " bytes"));
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, "; it must be between ", min, " and ", max));
}

}  // namespace tessera
