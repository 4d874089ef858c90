#include "client/cli/event_view.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "client/cli/text_table.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

std::string WithoutPrefix(const std::string& name, absl::string_view prefix) {
  // Empty for what this build does not know.
  return name.empty() ? "UNKNOWN" : std::string(absl::StripPrefix(name, prefix));
}

std::string SeverityName(const v1::Event& event) {
  return WithoutPrefix(v1::EventSeverity_Name(event.severity()), "EVENT_SEVERITY_");
}

}  // namespace

std::string EventLine(const v1::Event& event) {
  std::vector<std::string> who;
  if (!event.job_id().empty()) who.push_back(absl::StrCat("job ", event.job_id()));
  if (event.rank() >= 0) who.push_back(absl::StrCat("rank ", event.rank()));
  if (!event.worker_id().empty()) who.push_back(absl::StrCat("worker ", event.worker_id()));
  const std::string time = absl::FormatTime(
      "%Y-%m-%d %H:%M:%SZ", absl::FromUnixMillis(event.time_unix_ms()), absl::UTCTimeZone());
  return Printable(absl::StrFormat("%s %-7s %s: %s", time, SeverityName(event),
                                   absl::StrJoin(who, ", "), event.text()));
}

std::string EventJson(const v1::Event& event) {
  nlohmann::ordered_json json = {
      {"number", event.number()},
      {"time_unix_ms", event.time_unix_ms()},
      {"kind", WithoutPrefix(v1::EventKind_Name(event.kind()), "EVENT_KIND_")},
      {"severity", SeverityName(event)}};
  if (!event.job_id().empty()) {
    json["job_id"] = event.job_id();
    json["generation"] = event.generation();
    json["epoch"] = event.epoch();
    json["committed_step"] = event.committed_step();
  }
  if (event.rank() >= 0) json["rank"] = event.rank();
  if (!event.worker_id().empty()) json["worker_id"] = event.worker_id();
  json["text"] = event.text();
  return json.dump(-1, ' ', /*ensure_ascii=*/true,
                   nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace tessera::cli
