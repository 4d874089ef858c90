#include "coordinator/service/field_checks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"

namespace tessera::coordinator {
namespace {

template <typename Allowed>
absl::Status CheckText(absl::string_view field, absl::string_view text, size_t max,
                       absl::string_view form, Allowed allowed) {
  if (!text.empty() && text.size() <= max && std::all_of(text.begin(), text.end(), allowed)) {
    return absl::OkStatus();
  }
  // Escaped and truncated, because the text may be anything and goes into logs.
  return absl::InvalidArgumentError(absl::StrCat(field, " '", absl::CHexEscape(Truncated(text, 80)),
                                                 "': must be ", form, ", 1 to ", max,
                                                 " characters"));
}

}  // namespace

absl::Status CheckJobId(absl::string_view id) {
  // Job ids are parts of the journal's keys, where a slash separates.
  return CheckText("job_id", id, 63, "of [a-z0-9-]", [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
  });
}

absl::Status CheckRequestId(absl::string_view id) {
  return CheckText("request_id", id, 128, "printable ASCII",
                   [](unsigned char c) { return absl::ascii_isprint(c); });
}

absl::string_view Truncated(absl::string_view text, size_t max) { return Utf8Prefix(text, max); }

}  // namespace tessera::coordinator
