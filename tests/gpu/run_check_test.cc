// The whole check over programs that end in each way that there is.
#include "tests/gpu/run_check.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/gpu/check_report.h"

namespace tessera {
namespace gpu_check {
namespace {

using testing::HasSubstr;

std::string SampleProgram() { return std::filesystem::absolute("tests/gpu/sample_program"); }

class RunCheckTest : public testing::Test {
 protected:
  RunCheckTest() {
    std::string folder = testing::TempDir() + "/check.XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    options_.folder = folder;
    options_.out = folder + "/out.json";
  }
  ~RunCheckTest() override { std::filesystem::remove_all(options_.folder); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(options_.folder + "/" + name) << text;
  }
  // A program `name` whose tests are those of the sample that `filter` names.
  void AddProgram(const std::string& name, const std::string& filter, int seconds = 300,
                  const std::string& again = "") {
    std::filesystem::create_symlink(SampleProgram(), options_.folder + "/" + name);
    absl::StrAppend(&suites_, "//sample:", name, " ", seconds, " ", filter, " ", again, "\n");
  }
  // A tool that is this script.
  void AddTool(const std::string& name, const std::string& script) {
    const std::string folder = options_.folder + "/tools";
    std::filesystem::create_directory(folder);
    Write("tools/" + name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(folder + "/" + name, std::filesystem::perms::owner_all);
    options_.tool_folders = {options_.folder + "/nothing", folder};
  }
  nlohmann::json Suite(const std::string& name) {
    const nlohmann::json document = Document();
    for (const nlohmann::json& suite : document["suites"]) {
      if (suite["name"] == name) return suite;
    }
    ADD_FAILURE() << name << " is not in the document";
    return {};
  }
  int Run(absl::Status usable = absl::OkStatus()) {
    Write(kSuitesFile, suites_);
    GpuFacts gpu;
    gpu.usable = std::move(usable);
    gpu.mps = mps_;
    return RunCheck(options_, gpu, &progress_, &table_);
  }
  nlohmann::json Document() {
    std::ifstream file(options_.out);
    return nlohmann::json::parse(file);
  }
  std::string Log() {
    std::stringstream text;
    text << std::ifstream(LogOf(options_.out)).rdbuf();
    return text.str();
  }

  CheckOptions options_;
  std::string suites_;
  MpsFinding mps_;
  std::stringstream progress_, table_;
};

TEST_F(RunCheckTest, EachWayToEndIsCountedAndNamed) {
  AddProgram("passes", "SampleTest.Passes*");
  AddProgram("fails", "SampleTest.Passes:SampleTest.Fails:ParameterTest.*:Some/*");
  AddProgram("skips", "SampleTest.IsSkipped");
  AddProgram("skips_some", "SampleTest.IsSkipped:SampleTest.Passes");
  AddProgram("has_none", "SampleTest.IsNotThere");
  AddProgram("dies", "SampleTest.Passes:SampleTest.Dies");
  AddProgram("ends_early", "SampleTest.EndsWithoutResults");
  AddProgram("hangs", "SampleTest.Hangs", /*seconds=*/1);
  absl::StrAppend(&suites_, "//sample:is_missing 300 *\n");
  EXPECT_EQ(Run(), kExitFailed);

  const nlohmann::json document = Document();
  EXPECT_EQ(document["status"], "failed");
  const auto expect = [&](const char* name, const char* outcome, int passed, int skipped,
                          std::vector<std::string> failures, const char* reason) {
    SCOPED_TRACE(name);
    for (const nlohmann::json& suite : document["suites"]) {
      if (suite["name"] != name) continue;
      EXPECT_EQ(suite["outcome"], outcome);
      EXPECT_EQ(suite["passed"], passed);
      EXPECT_EQ(suite["skipped"], skipped);
      EXPECT_EQ(suite["failures"], failures);
      EXPECT_EQ(suite["failed"], failures.size());
      EXPECT_THAT(suite.value("reason", ""), HasSubstr(reason));
      return;
    }
    ADD_FAILURE() << "it is not in the document";
  };
  expect("passes", "passed", 2, 0, {}, "");
  expect("fails", "failed", 3, 0, {"SampleTest.Fails", "Some/ParameterTest.IsEven/1"}, "");
  expect("skips", "ran nothing", 0, 1, {}, "it lacks a thing");
  expect("skips_some", "passed", 1, 1, {}, "");
  expect("has_none", "ran nothing", 0, 0, {}, "no test has this name");
  expect("dies", "failed", 1, 0, {"SampleTest.Dies"}, "ended by signal 11");
  expect("ends_early", "failed", 0, 0, {"SampleTest.EndsWithoutResults"}, "exit status 0");
  expect("is_missing", "failed", 0, 0, {}, "No such file");
  // How far it has come within its deadline is the machine's business.
  EXPECT_THAT(document["suites"].dump(), HasSubstr("killed after 1 s"));
  EXPECT_THAT(Log(), HasSubstr("as it is meant to"));
  EXPECT_THAT(Log(), HasSubstr("[9/9] is_missing failed"));
  EXPECT_THAT(progress_.str(), HasSubstr("[1/9] passes passed: 2 passed, 0 failed, 0 skipped"));
  EXPECT_THAT(table_.str(), HasSubstr("FAILED Some/ParameterTest.IsEven/1"));
}

TEST_F(RunCheckTest, AllThatRunsAndPassesIsExitStatusZero) {
  AddProgram("passes", "SampleTest.Passes*");
  AddProgram("fails", "SampleTest.Fails");
  options_.only = {"passes"};
  EXPECT_EQ(Run(), kExitPassed);
  EXPECT_EQ(Document()["status"], "passed");
  EXPECT_EQ(Document()["suites"].size(), 1);
}

TEST_F(RunCheckTest, RowsOfTheBenchmarkAreInTheDocumentAndTheTable) {
  BenchRow row;
  row.name = "copy";
  row.unit = "GB/s";
  row.value = {1, 2, 3};
  Write("bench",
        absl::StrCat("#!/bin/sh\ncat >\"${1#--json=}\" <<'END'\n", RowsToJson({row}), "\nEND\n"));
  std::filesystem::permissions(options_.folder + "/bench", std::filesystem::perms::owner_all);
  suites_ = "//sample:bench 300 rows\n";
  EXPECT_EQ(Run(), kExitPassed);
  EXPECT_EQ(Document()["rows"][0]["median"], 2);
  EXPECT_THAT(table_.str(), HasSubstr("2.00 GB/s  [1.00, 3.00]"));
}

TEST_F(RunCheckTest, RowsOfABenchmarkThatIsKilledInTheMiddleAreKeptAndTheCheckFails) {
  std::filesystem::create_symlink(std::filesystem::absolute("tests/gpu/sample_bench"),
                                  options_.folder + "/bench");
  suites_ = "//sample:bench 300 rows\n";
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_EQ(Suite("bench")["outcome"], "failed");
  EXPECT_EQ(Suite("bench")["reason"], "ended by signal 9");
  EXPECT_EQ(Suite("bench")["passed"], 1);
  ASSERT_EQ(Document()["rows"].size(), 1);
  EXPECT_EQ(Document()["rows"][0]["name"], "first part");
  EXPECT_EQ(Document()["rows"][0]["median"], 2);
}

TEST_F(RunCheckTest, ProgramsRunAgainUnderTheSanitizerAndWhatItFindsIsAFailure) {
  AddProgram("clean", "SampleTest.Passes", 300, "memcheck,racecheck");
  AddProgram("plain", "SampleTest.Passes");
  // As the tool, but finds something where it looks for races.
  AddTool("compute-sanitizer",
          "[ \"$1 $3 $4\" = '--tool --error-exitcode 99' ] || exit 1\n"
          "tool=$2\nshift 4\n"
          "if [ \"$tool\" = memcheck ]; then\n"
          "  [ \"$1 $2\" = '--report-api-errors no' ] || exit 1\n  shift 2\nfi\n"
          "\"$@\" || exit 98\n"
          "[ \"$tool\" = racecheck ] || exit 0\n"
          "echo '========= RACECHECK SUMMARY: 2 hazards'\nexit 99\n");
  EXPECT_EQ(Run(), kExitFailed);
  EXPECT_EQ(Document()["suites"].size(), 4);
  EXPECT_EQ(Suite("clean")["outcome"], "passed");
  EXPECT_EQ(Suite("clean under memcheck")["outcome"], "passed");
  EXPECT_EQ(Suite("clean under memcheck")["passed"], 1);
  EXPECT_EQ(Suite("clean under racecheck")["outcome"], "failed");
  EXPECT_EQ(Suite("clean under racecheck")["reason"], "compute-sanitizer: 2 hazards");
  EXPECT_THAT(table_.str(), HasSubstr("clean under memcheck"));
  options_.once = true;
  EXPECT_EQ(Run(), kExitPassed);
  EXPECT_EQ(Document()["suites"].size(), 2);
}

TEST_F(RunCheckTest, WhereTheToolsAreNotThereThatIsInTheDocumentAndFailsNothing) {
  AddProgram("clean", "SampleTest.Passes", 300, "memcheck,mps");
  options_.tool_folders = {options_.folder};
  EXPECT_EQ(Run(), kExitPassed);
  for (const char* name : {"clean under memcheck", "clean under mps"}) {
    EXPECT_EQ(Suite(name)["outcome"], "no tool") << name;
    EXPECT_THAT(std::string(Suite(name)["reason"]), HasSubstr("there is no ")) << name;
  }
}

// The daemon, as far as a check sees of it: a pipe of that name, and an end when it is told.
constexpr char kDaemon[] =
    "pipe=$CUDA_MPS_PIPE_DIRECTORY/control\n"
    "if [ \"$1\" = -f ]; then\n"
    "  mkfifo \"$pipe.new\" && mv \"$pipe.new\" \"$pipe\" || exit 1\n"
    "  read word <\"$pipe\"\n  echo \"daemon: $word\"\n  exit 0\nfi\n"
    "cat >\"$pipe\"\n";

TEST_F(RunCheckTest, ProgramsRunUnderADaemonOfTheirOwnThatIsToldToQuit) {
  BenchRow row;
  row.name = "step";
  row.unit = "us";
  // What it has in the environment is the row's name.
  Write("bench",
        absl::StrCat("#!/bin/sh\nname=step\n[ ! -p \"$CUDA_MPS_PIPE_DIRECTORY/control\" ]"
                     " || name=beside\ncat >\"${1#--json=}\" <<END\n",
                     absl::StrReplaceAll(RowsToJson({row}), {{"step", "$name"}}), "\nEND\n"));
  std::filesystem::permissions(options_.folder + "/bench", std::filesystem::perms::owner_all);
  suites_ = "//sample:bench 300 rows mps\n";
  AddTool("nvidia-cuda-mps-control", kDaemon);
  EXPECT_EQ(Run(), kExitPassed);
  ASSERT_EQ(Document()["rows"].size(), 2);
  EXPECT_EQ(Document()["rows"][0]["name"], "step");
  EXPECT_EQ(Document()["rows"][1]["name"], "beside, under MPS");
  EXPECT_THAT(Log(), HasSubstr("daemon: quit"));
  EXPECT_EQ(getenv("CUDA_MPS_PIPE_DIRECTORY"), nullptr);
}

TEST_F(RunCheckTest, DaemonThatCannotRunIsNoneAndOneThatRunsAlreadyOrMayIsLeftAlone) {
  AddProgram("bench", "SampleTest.Passes", 300, "mps");
  AddTool("nvidia-cuda-mps-control", "echo no such device\nexit 1\n");
  EXPECT_EQ(Run(), kExitPassed);
  EXPECT_EQ(Suite("bench under mps")["outcome"], "no tool");
  EXPECT_THAT(std::string(Suite("bench under mps")["reason"]), HasSubstr("ended at once"));
  EXPECT_THAT(Log(), HasSubstr("no such device"));
  EXPECT_EQ(getenv("CUDA_MPS_PIPE_DIRECTORY"), nullptr);
  for (const Mps verdict : {Mps::kRunning, Mps::kElsewhere, Mps::kUnclear}) {
    mps_ = {verdict, "it is there"};
    EXPECT_EQ(Run(), kExitPassed);
    EXPECT_EQ(Suite("bench under mps")["outcome"], "no tool");
    EXPECT_THAT(std::string(Suite("bench under mps")["reason"]), HasSubstr("it is there"));
  }
}

TEST_F(RunCheckTest, WithoutAGpuNothingRunsAndTheDocumentSaysWhy) {
  AddProgram("dies", "SampleTest.Dies");
  EXPECT_EQ(Run(absl::NotFoundError("no driver: libcuda.so.1")), kExitNoGpu);
  EXPECT_EQ(Document()["status"], "no usable GPU");
  EXPECT_EQ(Document()["reason"], "no driver: libcuda.so.1");
  EXPECT_TRUE(Document()["suites"].empty());
  EXPECT_THAT(table_.str(), HasSubstr("no usable GPU: no driver: libcuda.so.1"));
  EXPECT_THAT(Log(), HasSubstr("no usable GPU: no driver: libcuda.so.1"));
}

TEST_F(RunCheckTest, WhatCannotBeStartedIsWrongUsageAndNoPass) {
  EXPECT_EQ(Run(), kExitWrongUsage);
  EXPECT_THAT(progress_.str(), HasSubstr("there is no program to run"));
  AddProgram("passes", "SampleTest.Passes");
  options_.only = {"others"};
  EXPECT_EQ(Run(), kExitWrongUsage);
  options_.only = {};
  options_.out = options_.folder + "/missing/out.json";
  EXPECT_EQ(Run(), kExitWrongUsage);
}

TEST_F(RunCheckTest, KilledProgramTakesItsChildrenWithIt) {
  const std::string fifo = options_.folder + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  setenv("FIFO", fifo.c_str(), 1);
  absl::StatusOr<ProgramEnd> end = absl::UnknownError("not run");
  std::atomic<bool> ended{false};
  std::thread runner([&] {
    end = RunProgram({SampleProgram(), "--gtest_filter=SampleTest.Hangs"}, absl::InfiniteDuration(),
                     options_.folder + "/log");
    ended = true;
  });
  // Opens once the test has come there, and ends once nobody has it open any more.
  const UniqueFd reader(open(fifo.c_str(), O_RDONLY));
  ASSERT_TRUE(reader.valid());
  while (!ended) {  // It is there before this process knows its number.
    KillRunningProgram();
    std::this_thread::yield();
  }
  runner.join();
  unsetenv("FIFO");
  char byte;
  EXPECT_EQ(read(reader.get(), &byte, 1), 0);
  ASSERT_OK(end);
  EXPECT_FALSE(end->killed) << "not at its deadline";
  EXPECT_EQ(end->exit_status, 128 + SIGKILL);
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
