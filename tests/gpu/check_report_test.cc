// What the report makes of how programs end. The texts are what gtest 1.12 wrote.
#include "tests/gpu/check_report.h"

#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera {
namespace gpu_check {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr char kSkippedJson[] = R"({"tests": 1, "name": "AllTests", "testsuites": [
  {"name": "SampleTest", "tests": 1, "failures": 0, "disabled": 0, "errors": 0, "testsuite": [
    {"name": "IsSkipped", "status": "RUN", "result": "SKIPPED", "time": "0s",
     "classname": "SampleTest"}]}]})";
constexpr char kSkippedOutput[] =
    "[ RUN      ] SampleTest.IsSkipped\n"
    "tests/gpu/sample_program.cc:16: Skipped\n"
    "it lacks a thing\n\n"
    "[  SKIPPED ] SampleTest.IsSkipped (0 ms)\n"
    "[  PASSED  ] 0 tests.\n"
    "[  SKIPPED ] 1 test, listed below:\n"
    "[  SKIPPED ] SampleTest.IsSkipped\n";
constexpr char kMixedJson[] = R"({"tests": 4, "name": "AllTests", "testsuites": [
  {"name": "Some/ParameterTest", "tests": 4, "testsuite": [
    {"name": "IsEven/0", "status": "RUN", "result": "COMPLETED"},
    {"name": "IsEven/1", "status": "RUN", "result": "COMPLETED",
     "failures": [{"failure": "one"}, {"failure": "two"}]},
    {"name": "IsEven/2", "status": "RUN", "result": "SKIPPED"},
    {"name": "DISABLED_IsOdd/0", "status": "NOTRUN", "result": "SUPPRESSED"}]}]})";
constexpr char kKilledOutput[] =
    "[ RUN      ] Some/ParameterTest.IsEven/0\n"
    "[       OK ] Some/ParameterTest.IsEven/0 (0 ms)\n"
    "[ RUN      ] Some/ParameterTest.IsEven/1\n"
    "[  FAILED  ] Some/ParameterTest.IsEven/1, where GetParam() = 3 (0 ms)\n"
    "[ RUN      ] SampleTest.Hangs\n"
    "something that it said\n";

Suite SampleSuite() { return {"sample", absl::Seconds(300), "*"}; }

ProgramEnd End(int exit_status, std::string output = "") {
  ProgramEnd end;
  end.exit_status = exit_status;
  end.output = std::move(output);
  return end;
}

TEST(JudgeTestsTest, CountsAreThoseOfGtestAndFailuresHaveNames) {
  const SuiteResult result = JudgeTests(SampleSuite(), End(1), kMixedJson);
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_EQ(result.counts.passed, 1);
  EXPECT_EQ(result.counts.skipped, 1);
  EXPECT_THAT(result.counts.failures, ElementsAre("Some/ParameterTest.IsEven/1"));
  EXPECT_EQ(result.reason, "") << "the failure says it all";
}

TEST(JudgeTestsTest, ProgramWhoseTestsWereAllSkippedHasNotPassed) {
  const SuiteResult result = JudgeTests(SampleSuite(), End(0, kSkippedOutput), kSkippedJson);
  EXPECT_EQ(result.outcome, Outcome::kRanNothing);
  EXPECT_EQ(result.counts.skipped, 1);
  EXPECT_EQ(result.reason, "it lacks a thing");
  const SuiteResult empty = JudgeTests(SampleSuite(), End(0), R"({"testsuites": []})");
  EXPECT_EQ(empty.outcome, Outcome::kRanNothing);
  EXPECT_EQ(empty.reason, "no test has this name");
}

TEST(JudgeTestsTest, OfAKilledProgramTheTestThatRanHasFailed) {
  ProgramEnd end = End(137, kKilledOutput);
  end.killed = true;
  const SuiteResult result = JudgeTests(SampleSuite(), end, "");
  EXPECT_EQ(result.outcome, Outcome::kKilled);
  EXPECT_EQ(result.counts.passed, 1);
  EXPECT_THAT(result.counts.failures,
              ElementsAre("Some/ParameterTest.IsEven/1", "SampleTest.Hangs"));
  EXPECT_EQ(result.reason, "killed after 300 s");
}

TEST(JudgeTestsTest, ProgramThatEndsBadlyWithoutAFailureHasFailedAndSaysHow) {
  const std::string passed = R"({"testsuites": [{"name": "A", "testsuite": [
      {"name": "B", "status": "RUN", "result": "COMPLETED"}]}]})";
  EXPECT_EQ(JudgeTests(SampleSuite(), End(0), passed).outcome, Outcome::kPassed);
  for (const auto& [end, json, reason] : {
           std::tuple{End(1), passed, "ended with exit status 1"},
           std::tuple{End(139), passed, "ended by signal 11"},
           std::tuple{End(0), std::string(), "ended with exit status 0, and left no results"},
           std::tuple{End(0), passed.substr(0, 40), "ended with exit status 0, and left"},
       }) {
    const SuiteResult result = JudgeTests(SampleSuite(), end, json);
    EXPECT_EQ(result.outcome, Outcome::kFailed) << reason;
    EXPECT_THAT(result.reason, HasSubstr(reason));
  }
}

TEST(JudgeBenchTest, RowsCountAsTestsAndAnAimIsNone) {
  BenchRow slow, none;
  slow.name = "slow";
  slow.unit = "GB/s";
  slow.value = {1, 1, 1};
  slow.ratio_to = "copy";
  slow.ratio = {0.5, 0.5, 0.5};
  slow.aim = 0.9;
  none.name = "none";
  none.error = "refused";
  std::vector<BenchRow> rows;
  EXPECT_EQ(JudgeBench(SampleSuite(), End(0), RowsToJson({slow}), &rows).outcome, Outcome::kPassed);
  EXPECT_EQ(JudgeBench(SampleSuite(), End(1), RowsToJson({slow}), &rows).outcome, Outcome::kFailed);
  const SuiteResult result = JudgeBench(SampleSuite(), End(1), RowsToJson({slow, none}), &rows);
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_EQ(result.counts.passed, 1);
  EXPECT_THAT(result.counts.failures, ElementsAre("none"));
  EXPECT_EQ(rows.size(), 4);
  const SuiteResult empty = JudgeBench(SampleSuite(), End(1), "", &rows);
  EXPECT_EQ(empty.outcome, Outcome::kFailed);
  EXPECT_THAT(empty.reason, HasSubstr("ended with exit status 1: no rows"));
  EXPECT_EQ(rows.size(), 4);
}

TEST(JudgeBenchTest, RowsOfAProgramThatIsKilledOrDiesBehindThemAreKeptAndItHasFailed) {
  BenchRow row, none;
  row.name = "row";
  row.unit = "us";
  row.value = {1, 2, 3};
  none.name = "none";
  none.error = "refused";
  ProgramEnd killed = End(137);
  killed.killed = true;
  for (const auto& [end, outcome, reason] : {
           std::tuple{killed, Outcome::kKilled, "killed after 300 s"},
           std::tuple{End(139), Outcome::kFailed, "ended by signal 11"},
       }) {
    std::vector<BenchRow> rows;
    SuiteResult result = JudgeBench(SampleSuite(), end, RowsToJson({row}), &rows);
    EXPECT_EQ(result.outcome, outcome);
    EXPECT_EQ(result.reason, reason);
    EXPECT_EQ(result.counts.passed, 1);
    ASSERT_EQ(rows.size(), 1);
    EXPECT_EQ(rows[0].value.median, 2);
    result = JudgeBench(SampleSuite(), end, RowsToJson({row, none}), &rows);
    EXPECT_EQ(result.reason, reason) << "which the row that failed does not say";
    EXPECT_THAT(result.counts.failures, ElementsAre("none"));
    EXPECT_EQ(rows.size(), 3);
    result = JudgeBench(SampleSuite(), end, "{\"rows\": [{", &rows);
    EXPECT_EQ(result.outcome, outcome);
    EXPECT_THAT(result.reason, HasSubstr(reason));
    EXPECT_EQ(rows.size(), 3) << "what is half written is nothing";
  }
}

TEST(JudgeBenchTest, PeerThatTheMachineLacksIsNoFailureAndAnotherBenchmarksEndIsOne) {
  ProgramEnd end = End(kExitNoPeer);
  end.output = "no PyTorch: no module\nand more\n";
  Suite peer = SampleSuite();
  peer.filter = "peer-rows";
  std::vector<BenchRow> rows;
  const SuiteResult lacking = JudgeBench(peer, end, "", &rows);
  EXPECT_EQ(lacking.outcome, Outcome::kNoPeer);
  EXPECT_EQ(lacking.reason, "no PyTorch: no module");
  EXPECT_EQ(JudgeBench(SampleSuite(), end, "", &rows).outcome, Outcome::kFailed);
  end.killed = true;
  EXPECT_EQ(JudgeBench(peer, end, "", &rows).outcome, Outcome::kKilled);
  Report report;
  report.suites = {lacking};
  EXPECT_EQ(ExitStatus(report), kExitFailed) << "nothing of ours ran";
  report.suites.push_back(lacking);
  report.suites[0].outcome = Outcome::kPassed;
  EXPECT_EQ(ExitStatus(report), kExitPassed);
}

TEST(JudgeTestsTest, WhatASanitizerFoundIsToldByItsSummary) {
  const std::string passed = R"({"testsuites": [{"name": "A", "testsuite": [
      {"name": "B", "status": "RUN", "result": "COMPLETED"}]}]})";
  const SuiteResult result = JudgeTests(
      SampleSuite(), End(kExitSanitizer, "========= ERROR SUMMARY: 3 errors\nbye\n"), passed);
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  EXPECT_EQ(result.reason, "compute-sanitizer: 3 errors");
  EXPECT_EQ(JudgeTests(SampleSuite(), End(kExitSanitizer), passed).reason,
            "ended with exit status 99");
}

TEST(JudgeBenchTest, FigureThatTheMachineHasNoMeansForIsNoFailure) {
  BenchRow row, absent;
  row.name = "row";
  row.unit = "us";
  absent.name = "absent";
  absent.absent = "no libcupti";
  std::vector<BenchRow> rows;
  const SuiteResult result = JudgeBench(SampleSuite(), End(0), RowsToJson({row, absent}), &rows);
  EXPECT_EQ(result.outcome, Outcome::kPassed);
  EXPECT_EQ(result.counts.passed, 1);
  EXPECT_EQ(result.counts.skipped, 1);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_FALSE(rows[1].measured());
  Report report;
  report.rows = rows;
  EXPECT_THAT(Table(report), HasSubstr("not here: no libcupti"));
}

TEST(CheckReportTest, ToolThatIsNotThereFailsNothing) {
  Report report;
  report.suites.resize(2);
  report.suites[0].outcome = report.suites[1].outcome = Outcome::kNoTool;
  EXPECT_EQ(ExitStatus(report), kExitFailed) << "nothing ran";
  report.suites[0].outcome = Outcome::kPassed;
  EXPECT_EQ(ExitStatus(report), kExitPassed);
}

TEST(CheckReportTest, PassesOnlyWhereSomethingRanAndAllOfItPassed) {
  Report report;
  EXPECT_EQ(ExitStatus(report), kExitFailed) << "nothing ran";
  report.suites.resize(2);
  for (SuiteResult& suite : report.suites) suite.outcome = Outcome::kPassed;
  EXPECT_EQ(ExitStatus(report), kExitPassed);
  for (Outcome outcome : {Outcome::kFailed, Outcome::kKilled, Outcome::kRanNothing}) {
    report.suites[1].outcome = outcome;
    EXPECT_EQ(ExitStatus(report), kExitFailed);
  }
  report.gpu.usable = absl::NotFoundError("no driver");
  EXPECT_EQ(ExitStatus(report), kExitNoGpu);
}

TEST(CheckReportTest, DocumentAndTableHaveEverything) {
  Report report;
  report.when = absl::FromUnixSeconds(1'800'000'000);
  report.gpu.name = "NVIDIA H200";
  report.log = "a.log";
  SuiteResult failed = JudgeTests(SampleSuite(), End(1), kMixedJson);
  failed.reason = "not \xFF UTF-8";
  report.suites = {failed};
  BenchRow row;
  row.name = "AdamW";
  row.unit = "GB/s";
  row.value = {1, 1500, 2000};
  row.ratio_to = "copy";
  row.ratio = {0.5, 0.875, 1};
  row.aim = 0.9;
  row.gate = 0.875;
  BenchRow count;
  count.name = "kernels";
  count.value = {0, 1, 2};
  count.limit = 0;
  report.rows = {row, count};
  const auto document = nlohmann::json::parse(ToJson(report));
  EXPECT_EQ(document["date"], "2027-01-15T08:00:00Z");
  EXPECT_EQ(document["status"], "failed");
  EXPECT_EQ(document["gpu"]["name"], "NVIDIA H200");
  EXPECT_EQ(document["suites"][0]["outcome"], "failed");
  EXPECT_EQ(document["suites"][0]["failures"][0], "Some/ParameterTest.IsEven/1");
  EXPECT_EQ(document["rows"][0]["ratio"]["median"], 0.875);
  EXPECT_EQ(document["rows"][0]["aim_met"], false);
  EXPECT_EQ(document["rows"][0]["gate_met"], true);
  EXPECT_FALSE(document["rows"][0].contains("limit"));
  EXPECT_EQ(document["rows"][1]["limit"], 0);
  EXPECT_EQ(document["rows"][1]["limit_met"], false);
  const std::string table = Table(report);
  EXPECT_THAT(table, HasSubstr("failed: 1 passed, 1 failed, 1 skipped"));
  EXPECT_THAT(table, HasSubstr("FAILED Some/ParameterTest.IsEven/1"));
  EXPECT_THAT(table,
              HasSubstr("1500 GB/s  [1.00, 2000]  ratio 0.875, aim 0.9: missed, gate 0.875\n"));
  EXPECT_THAT(table, HasSubstr("[0.000, 2.00]  at most 0: missed\n"));
}

TEST(CheckSuitesTest, LinesThatAreNoneAndNamesThatAreTakenAreRefused) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Suite> suites,
                       ParseSuites("# words\n\n//a/b:one 5 X.*\n//c:two  30\trows\n"));
  ASSERT_EQ(suites.size(), 2);
  EXPECT_EQ(suites[0].name, "one");
  EXPECT_EQ(suites[0].deadline, absl::Seconds(5));
  EXPECT_EQ(suites[0].filter, "X.*");
  EXPECT_FALSE(suites[0].is_bench());
  EXPECT_TRUE(suites[1].is_bench());
  for (const char* bad : {"", "# nothing", "//a:b 5", "//a:b 0 X", "//a:b x X", "//a/b 5 X",
                          "//a: 5 X", "//a:b/c 5 X", "//a:b 5 X Y", "//a:b 5 X mps,",
                          "//a:b 5 X mps mps", "//a:b 5 X\n//c:b 5 Y"}) {
    EXPECT_THAT(ParseSuites(bad), StatusIs(absl::StatusCode::kInvalidArgument, testing::_)) << bad;
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<Suite> again,
                       ParseSuites("//a:b 5 X memcheck,racecheck\n//a:c 5 rows mps\n//a:d 5 X"));
  EXPECT_THAT(again[0].again, ElementsAre("memcheck", "racecheck"));
  EXPECT_THAT(again[1].again, ElementsAre("mps"));
  EXPECT_THAT(again[2].again, ElementsAre());
  ASSERT_OK_AND_ASSIGN(const std::vector<Suite> chosen, ChooseSuites(suites, {"two"}));
  ASSERT_EQ(chosen.size(), 1);
  EXPECT_EQ(chosen[0].name, "two");
  EXPECT_EQ(ChooseSuites(suites, {})->size(), 2);
  EXPECT_THAT(ChooseSuites(suites, {"one", "three"}),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no 'three' among one, two")));
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
