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

namespace tessera {
namespace gpu_check {
namespace {

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

SuiteResult RunSuite(const CheckOptions& options, const Suite& suite, const std::string& results,
                     std::vector<BenchRow>* rows) {
  std::vector<std::string> arguments = {absl::StrCat(options.folder, "/", suite.name)};
  if (suite.is_bench()) {
    arguments.push_back(absl::StrCat("--json=", results));
  } else {
    arguments.push_back(absl::StrCat("--gtest_filter=", suite.filter));
    arguments.push_back(absl::StrCat("--gtest_output=json:", results));
    arguments.push_back("--gtest_color=no");
  }
  const absl::StatusOr<ProgramEnd> end = RunProgram(arguments, suite.deadline, LogOf(options.out));
  if (!end.ok()) {
    SuiteResult result;
    result.name = suite.name;
    result.reason = std::string(end.status().message());
    return result;
  }
  const std::string json = ReadFile(results);
  return suite.is_bench() ? JudgeBench(suite, *end, json, rows) : JudgeTests(suite, *end, json);
}

absl::Status RunSuites(const CheckOptions& options, const std::vector<Suite>& suites,
                       Progress* progress, Report* report) {
  std::string scratch = (std::filesystem::temp_directory_path() / "gpu-check.XXXXXX").string();
  if (mkdtemp(scratch.data()) == nullptr) return ErrnoStatus(errno, scratch);
  const absl::Cleanup remove = [&scratch] {
    std::error_code ignored;
    std::filesystem::remove_all(scratch, ignored);
  };
  for (size_t i = 0; i < suites.size(); ++i) {
    const std::string which = absl::StrCat("[", i + 1, "/", suites.size(), "] ", suites[i].name);
    progress->Say(absl::StrCat(which, " ..."));
    const std::string results = absl::StrCat(scratch, "/", suites[i].name, ".json");
    report->suites.push_back(RunSuite(options, suites[i], results, &report->rows));
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
