#include "client/cpp/load_model.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// See LoadPlan::Report. What was too long lacks its end, and perhaps a part of its last line.
LoadReport ParseReport(const std::string& text) {
  LoadReport report;
  report.cut_short = !text.empty() && !absl::EndsWith(text, "\nend\n");
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  for (absl::string_view line : lines) {
    std::vector<std::string>* into = nullptr;
    if (absl::ConsumePrefix(&line, "missing ")) into = &report.missing;
    if (absl::ConsumePrefix(&line, "unexpected ")) into = &report.unexpected;
    std::string name;
    if (into != nullptr && absl::CUnescape(line, &name)) into->push_back(std::move(name));
  }
  return report;
}

}  // namespace

absl::StatusOr<LoadReport> LoadModel(Session* session, const std::string& path,
                                     const LoadOptions& options) {
  ASSIGN_OR_RETURN(const std::string report, session->Load(path, options.strict));
  return ParseReport(report);
}

}  // namespace tessera
