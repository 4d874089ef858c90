#include "tests/gpu/run_check.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "tests/gpu/check_report.h"
#include "tests/gpu/check_tools.h"

namespace tessera {
namespace gpu_check {
namespace {

constexpr int kSanitizerSlowdown = 6;  // By which its deadline is longer.

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return file ? text.str() : "";
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  if (file.flush()) return absl::OkStatus();
  return ErrnoStatus(errno, path);
}

// Progress, where somebody may watch and where somebody may look later.
class Progress {
 public:
  Progress(std::ostream* out, std::string log) : out_(out), log_(std::move(log)) {}
  void Say(const std::string& line) {
    *out_ << line << std::endl;
    std::ofstream(log_, std::ios::app) << line << std::endl;
  }

 private:
  std::ostream* const out_;
  const std::string log_;
};

// A program, and how it runs: empty: by itself.
struct Turn {
  Suite suite;
  std::string way;

  std::string name() const {
    return way.empty() ? suite.name : absl::StrCat(suite.name, " under ", way);
  }
};

std::vector<Turn> TurnsOf(const std::vector<Suite>& suites, bool once) {
  std::vector<Turn> turns;
  for (const Suite& suite : suites) turns.push_back({suite, ""});
  if (once) return turns;
  for (const Suite& suite : suites) {
    for (const std::string& way : suite.again) turns.push_back({suite, way});
  }
  return turns;
}

SuiteResult NotRun(const Turn& turn, Outcome outcome, const absl::Status& why) {
  SuiteResult result;
  result.name = turn.name();
  result.outcome = outcome;
  result.reason = std::string(why.message());
  return result;
}

SuiteResult RunSuite(const CheckOptions& options, const Turn& turn,
                     const std::vector<std::string>& tool, const std::string& results,
                     std::vector<BenchRow>* rows) {
  Suite suite = turn.suite;
  if (!tool.empty()) suite.deadline *= kSanitizerSlowdown;
  std::vector<std::string> arguments = tool;
  arguments.push_back(absl::StrCat(options.folder, "/", suite.name));
  if (suite.is_bench()) {
    arguments.push_back(absl::StrCat("--json=", results));
  } else {
    arguments.push_back(absl::StrCat("--gtest_filter=", suite.filter));
    arguments.push_back(absl::StrCat("--gtest_output=json:", results));
    arguments.push_back("--gtest_color=no");
  }
  const absl::StatusOr<ProgramEnd> end = RunProgram(arguments, suite.deadline, LogOf(options.out));
  if (!end.ok()) return NotRun(turn, Outcome::kFailed, end.status());
  const std::string json = ReadFile(results);
  suite.name = turn.name();
  return suite.is_bench() ? JudgeBench(suite, *end, json, rows) : JudgeTests(suite, *end, json);
}

SuiteResult RunUnderMps(const CheckOptions& options, const Turn& turn, const MpsFinding& mps,
                        const std::string& scratch, const std::string& results,
                        std::vector<BenchRow>* rows) {
  if (mps.verdict != Mps::kNotRunning) {
    return NotRun(turn, Outcome::kNoTool,
                  absl::AlreadyExistsError(absl::StrCat(
                      "a daemon runs already, or may, and no other is started: ", mps.reason)));
  }
  const absl::StatusOr<std::string> tool = FindTool(kMpsControl, options.tool_folders);
  if (!tool.ok()) return NotRun(turn, Outcome::kNoTool, tool.status());
  const auto daemon = PrivateMps::Start(*tool, absl::StrCat(scratch, "/mps"), LogOf(options.out),
                                        absl::Seconds(20));
  // As where it is missing: not every machine that has it lets it run.
  if (!daemon.ok()) return NotRun(turn, Outcome::kNoTool, daemon.status());
  const size_t first = rows->size();
  const SuiteResult result = RunSuite(options, turn, {}, results, rows);
  for (size_t i = first; i < rows->size(); ++i) (*rows)[i].name += ", under MPS";
  return result;
}

SuiteResult RunTurn(const CheckOptions& options, const Turn& turn, const MpsFinding& mps,
                    const std::string& scratch, std::vector<BenchRow>* rows) {
  const std::string results = absl::StrCat(scratch, "/", turn.suite.name, ".json");
  std::error_code ignored;
  std::filesystem::remove(results, ignored);  // Of an earlier turn.
  if (turn.way.empty()) return RunSuite(options, turn, {}, results, rows);
  if (turn.way == kUnderMps) return RunUnderMps(options, turn, mps, scratch, results, rows);
  const absl::StatusOr<std::string> tool = FindTool(kSanitizer, options.tool_folders);
  if (!tool.ok()) return NotRun(turn, Outcome::kNoTool, tool.status());
  std::vector<std::string> sanitizer = {*tool, "--tool", turn.way, "--error-exitcode",
                                        absl::StrCat(kExitSanitizer)};
  if (turn.way == kMemcheck) {
    // Of what kernels do: calls of the driver may fail, as tests have it, and as its runtime does
    // when it looks for calls that an older driver lacks.
    sanitizer.insert(sanitizer.end(), {"--report-api-errors", "no"});
  }
  return RunSuite(options, turn, sanitizer, results, rows);
}

absl::Status RunSuites(const CheckOptions& options, const std::vector<Suite>& suites,
                       Progress* progress, Report* report) {
  std::string scratch = (std::filesystem::temp_directory_path() / "gpu-check.XXXXXX").string();
  if (mkdtemp(scratch.data()) == nullptr) return ErrnoStatus(errno, scratch);
  const absl::Cleanup remove = [&scratch] {
    std::error_code ignored;
    std::filesystem::remove_all(scratch, ignored);
  };
  const std::vector<Turn> turns = TurnsOf(suites, options.once);
  for (size_t i = 0; i < turns.size(); ++i) {
    const std::string which = absl::StrCat("[", i + 1, "/", turns.size(), "] ", turns[i].name());
    progress->Say(absl::StrCat(which, " ..."));
    report->suites.push_back(RunTurn(options, turns[i], report->gpu.mps, scratch, &report->rows));
    progress->Say(absl::StrCat(which, " ", Describe(report->suites.back())));
  }
  return absl::OkStatus();
}

absl::Status Check(const CheckOptions& options, std::ostream* progress, Report* report) {
  const std::string list = absl::StrCat(options.folder, "/", kSuitesFile);
  const absl::StatusOr<std::vector<Suite>> all = ParseSuites(ReadFile(list));
  RETURN_IF_ERROR(Annotate(all.status(), list));
  ASSIGN_OR_RETURN(const std::vector<Suite> suites, ChooseSuites(*all, options.only));
  report->log = LogOf(options.out);
  RETURN_IF_ERROR(WriteFile(report->log, ""));
  Progress said(progress, report->log);
  said.Say(Describe(report->gpu));
  if (report->gpu.usable.ok()) RETURN_IF_ERROR(RunSuites(options, suites, &said, report));
  return WriteFile(options.out, ToJson(*report) + "\n");
}

}  // namespace

std::string LogOf(const std::string& out) {
  return absl::StrCat(absl::StripSuffix(out, ".json"), ".log");
}

int RunCheck(const CheckOptions& options, const GpuFacts& gpu, std::ostream* progress,
             std::ostream* table) {
  Report report;
  report.when = absl::Now();
  report.gpu = gpu;
  const absl::Status status = Check(options, progress, &report);
  if (!status.ok()) {
    *progress << "gpu-check: " << status.message() << std::endl;
    return kExitWrongUsage;
  }
  *table << Table(report) << "written to " << options.out << std::endl;
  return ExitStatus(report);
}

}  // namespace gpu_check
}  // namespace tessera
