#include "client/cpp/load_model.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

// The last line may have been cut.
LoadReport ParseReport(const std::string& text) {
  LoadReport report;
  report.cut_short = !text.empty() && text.back() != '\n';
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  lines.pop_back();
  for (absl::string_view line : lines) {
    if (absl::ConsumePrefix(&line, "missing ")) report.missing.emplace_back(line);
    if (absl::ConsumePrefix(&line, "unexpected ")) report.unexpected.emplace_back(line);
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
