#include "tests/gpu/check_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace gpu_check {
namespace {

using Json = nlohmann::ordered_json;

const char* Name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kPassed:
      return "passed";
    case Outcome::kFailed:
      return "failed";
    case Outcome::kKilled:
      return "killed";
    case Outcome::kRanNothing:
      return "ran nothing";
    case Outcome::kNoPeer:
      return "no peer";
    case Outcome::kNoTool:
      return "no tool";
  }
  return "unknown";
}

const char* StatusName(int exit_status) {
  if (exit_status == kExitNoGpu) return "no usable GPU";
  return exit_status == kExitPassed ? "passed" : "failed";
}

// "3 errors" of "========= ERROR SUMMARY: 3 errors"; of races it is "RACECHECK SUMMARY: ...".
std::string SanitizerSummary(absl::string_view output) {
  constexpr absl::string_view kSummary = " SUMMARY: ";
  const size_t at = output.find(kSummary);
  if (at == absl::string_view::npos) return "";
  output.remove_prefix(at + kSummary.size());
  return absl::StrCat("compute-sanitizer: ", output.substr(0, output.find('\n')));
}

std::string EndOf(const Suite& suite, const ProgramEnd& end) {
  if (end.killed) {
    return absl::StrCat("killed after ", absl::ToInt64Seconds(suite.deadline), " s");
  }
  if (end.exit_status > 128) return absl::StrCat("ended by signal ", end.exit_status - 128);
  const std::string summary = end.exit_status == kExitSanitizer ? SanitizerSummary(end.output) : "";
  return summary.empty() ? absl::StrCat("ended with exit status ", end.exit_status) : summary;
}

// What is known before anything is looked at but how it ended.
SuiteResult Ended(const Suite& suite, const ProgramEnd& end) {
  SuiteResult result;
  result.name = suite.name;
  result.seconds = end.seconds;
  result.outcome = end.killed ? Outcome::kKilled : Outcome::kFailed;
  return result;
}

std::string Number(double value) {
  if (value >= 100) return absl::StrFormat("%.0f", value);
  return value >= 1 ? absl::StrFormat("%.2f", value) : absl::StrFormat("%.3f", value);
}

std::string RowLine(const BenchRow& row) {
  if (!row.absent.empty()) return absl::StrFormat("  %-46s  not here: %s\n", row.name, row.absent);
  if (!row.measured()) return absl::StrFormat("  %-46s  not measured: %s\n", row.name, row.error);
  std::string line =
      absl::StrFormat("  %-46s %9s %-5s [%s, %s]", row.name, Number(row.value.median), row.unit,
                      Number(row.value.low), Number(row.value.high));
  const auto missed = [](bool is_missed) { return is_missed ? ": missed" : ""; };
  if (row.limit.has_value())
    absl::StrAppend(&line, "  at most ", *row.limit, missed(row.misses_limit()));
  if (!row.ratio_to.empty()) {
    absl::StrAppend(&line, "  ratio ", Number(row.ratio.median));
    const auto bound = [](double value) { return absl::StrFormat("%.3g", value); };
    if (row.aim > 0) absl::StrAppend(&line, ", aim ", bound(row.aim), missed(row.misses_aim()));
    if (row.gate > 0) absl::StrAppend(&line, ", gate ", bound(row.gate), missed(row.misses_gate()));
  }
  return line + "\n";
}

}  // namespace

SuiteResult JudgeTests(const Suite& suite, const ProgramEnd& end, const std::string& json) {
  SuiteResult result = Ended(suite, end);
  const absl::StatusOr<TestCounts> counts = CountsOfJson(json);
  result.counts = counts.ok() ? *counts : CountsOfOutput(end.output);
  const int num_failed = result.counts.failures.size();
  const bool clean = !end.killed && end.exit_status == 0 && counts.ok() && num_failed == 0;
  if (clean && result.counts.passed > 0) {
    result.outcome = Outcome::kPassed;
    return result;
  }
  if (clean) {
    result.outcome = Outcome::kRanNothing;
    result.reason = FirstSkipReason(end.output);
    if (result.reason.empty()) result.reason = "no test has this name";
    return result;
  }
  // Tests that failed, and an exit status that says just that, need no more words.
  if (end.killed || num_failed == 0 || !counts.ok()) result.reason = EndOf(suite, end);
  if (!end.killed && num_failed == 0 && end.exit_status == 0) {
    absl::StrAppend(&result.reason, ", and left no results");
  }
  return result;
}

SuiteResult JudgeBench(const Suite& suite, const ProgramEnd& end, const std::string& json,
                       std::vector<BenchRow>* rows) {
  SuiteResult result = Ended(suite, end);
  if (suite.is_peer() && !end.killed && end.exit_status == kExitNoPeer) {
    result.outcome = Outcome::kNoPeer;
    result.reason = end.output.substr(0, end.output.find('\n'));
    return result;
  }
  const absl::StatusOr<std::vector<BenchRow>> read = RowsFromJson(json);
  if (!read.ok()) {
    result.reason = EndOf(suite, end);
    if (!end.killed) absl::StrAppend(&result.reason, ": ", read.status().message());
    return result;
  }
  for (const BenchRow& row : *read) {
    if (row.measured()) ++result.counts.passed;
    if (!row.absent.empty()) ++result.counts.skipped;
    if (!row.error.empty()) result.counts.failures.push_back(row.name);
    rows->push_back(row);
  }
  // A row that failed, and an exit status that says just that, need no more words.
  const bool was_ended = end.killed || end.exit_status > 128;
  if (!was_ended && end.exit_status == 0 && result.counts.failures.empty()) {
    result.outcome = Outcome::kPassed;
  } else if (was_ended || result.counts.failures.empty()) {
    result.reason = EndOf(suite, end);
  }
  return result;
}

int ExitStatus(const Report& report) {
  if (!report.gpu.usable.ok()) return kExitNoGpu;
  bool any_passed = false;
  for (const SuiteResult& suite : report.suites) {
    if (suite.outcome == Outcome::kNoPeer || suite.outcome == Outcome::kNoTool) continue;
    if (suite.outcome != Outcome::kPassed) return kExitFailed;
    any_passed = true;
  }
  return any_passed ? kExitPassed : kExitFailed;
}

std::string ToJson(const Report& report) {
  Json document;
  document["format"] = 1;
  document["date"] = absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", report.when, absl::UTCTimeZone());
  document["status"] = StatusName(ExitStatus(report));
  if (!report.gpu.usable.ok()) document["reason"] = std::string(report.gpu.usable.message());
  document["gpu"] = ToJson(report.gpu);
  document["suites"] = Json::array();
  for (const SuiteResult& result : report.suites) {
    Json suite = {{"name", result.name},
                  {"outcome", Name(result.outcome)},
                  {"passed", result.counts.passed},
                  {"failed", result.counts.failures.size()},
                  {"skipped", result.counts.skipped},
                  {"failures", result.counts.failures},
                  {"seconds", result.seconds}};
    if (!result.reason.empty()) suite["reason"] = result.reason;
    document["suites"].push_back(suite);
  }
  document["rows"] = Json::array();
  for (const BenchRow& row : report.rows) document["rows"].push_back(ToJson(row));
  document["log"] = report.log;
  // What programs say need not be UTF-8.
  return document.dump(2, ' ', false, Json::error_handler_t::replace);
}

std::string Describe(const SuiteResult& result) {
  std::string text = absl::StrFormat(
      "%s: %d passed, %d failed, %d skipped (%.1f s)", Name(result.outcome), result.counts.passed,
      result.counts.failures.size(), result.counts.skipped, result.seconds);
  if (!result.reason.empty()) absl::StrAppend(&text, ": ", result.reason);
  return text;
}

std::string Table(const Report& report) {
  std::string table = absl::StrCat(Describe(report.gpu), "\n");
  if (!report.suites.empty()) absl::StrAppend(&table, "\n");
  for (const SuiteResult& result : report.suites) {
    absl::StrAppendFormat(&table, "  %-36s %s\n", result.name, Describe(result));
    for (const std::string& failure : result.counts.failures) {
      absl::StrAppendFormat(&table, "  %-36s   FAILED %s\n", "", failure);
    }
  }
  if (!report.rows.empty()) absl::StrAppend(&table, "\n");
  for (const BenchRow& row : report.rows) absl::StrAppend(&table, RowLine(row));
  absl::StrAppend(&table, "\n", StatusName(ExitStatus(report)), "\n");
  return table;
}

}  // namespace gpu_check
}  // namespace tessera
