// What a check of a GPU came to: one document, one table, one exit status. Pure; thread-safe.
// docs/formats/gpu_check.md says what the document's fields mean.
#ifndef TESSERA_TESTS_GPU_CHECK_REPORT_H_
#define TESSERA_TESTS_GPU_CHECK_REPORT_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tests/gpu/bench_row.h"
#include "tests/gpu/check_suites.h"
#include "tests/gpu/gpu_facts.h"
#include "tests/gpu/run_program.h"
#include "tests/gpu/test_results.h"

namespace tessera {
namespace gpu_check {

enum class Outcome { kPassed, kFailed, kKilled, kRanNothing, kNoPeer, kNoTool };

// With which a benchmark of a peer ends where the machine lacks that.
inline constexpr int kExitNoPeer = 77;
// With which compute-sanitizer is told to end where it found an error.
inline constexpr int kExitSanitizer = 99;

struct SuiteResult {
  std::string name;
  Outcome outcome = Outcome::kFailed;
  TestCounts counts;
  double seconds = 0;
  std::string reason;  // Where it did not pass.
};

// Of a program of tests: `json` is what gtest wrote, empty where it wrote nothing. It has passed
// only if it ended well and something of it ran: all of it skipped is kRanNothing.
SuiteResult JudgeTests(const Suite& suite, const ProgramEnd& end, const std::string& json);

// A sanitizer's finding is not a test's failure: the reason has its summary.
//
// Of the benchmark: `json` is its output. A row counts as a test; one that misses its aim has
// passed, because an aim is not a test. A missing peer is not a failure, nor is a figure that this
// machine cannot measure. The rows go to `rows`, also those of a program that was killed or died
// after them, which has not passed.
SuiteResult JudgeBench(const Suite& suite, const ProgramEnd& end, const std::string& json,
                       std::vector<BenchRow>* rows);

struct Report {
  absl::Time when;
  GpuFacts gpu;
  std::vector<SuiteResult> suites;
  std::vector<BenchRow> rows;
  std::string log;  // Where everything that the programs said is.
};

inline constexpr int kExitPassed = 0;
inline constexpr int kExitFailed = 1;
inline constexpr int kExitNoGpu = 2;
inline constexpr int kExitWrongUsage = 3;

// kExitPassed only if something ran and all of it passed, but peers and tools that are not there.
int ExitStatus(const Report& report);
std::string ToJson(const Report& report);
std::string Table(const Report& report);

// "passed: 12 passed, 0 failed, 1 skipped (3.2 s)", and the reason.
std::string Describe(const SuiteResult& result);

}  // namespace gpu_check
}  // namespace tessera

#endif  // TESSERA_TESTS_GPU_CHECK_REPORT_H_
