// What the check of a GPU runs, as it goes into a bundle: the list, the programs and the script.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/gpu/check_report.h"
#include "tests/gpu/run_check.h"
#include "worker/device/cuda/cuda_versions.h"

namespace tessera {
namespace gpu_check {
namespace {

using testing::AnyOf;
using testing::HasSubstr;
namespace fs = std::filesystem;

std::string Read(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

constexpr char kList[] = "tests/gpu/gpu_suites.txt";

// "worker/device/cuda/cuda_device_test" by "cuda_device_test".
std::map<std::string, std::string> Programs() {
  std::map<std::string, std::string> programs;
  for (const absl::string_view line : absl::StrSplit(Read(kList), '\n')) {
    if (!absl::StartsWith(line, "//")) continue;
    std::string path(line.substr(2, line.find(' ') - 2));
    const size_t colon = path.find(':');
    path[colon] = '/';
    programs[path.substr(colon + 1)] = fs::absolute(path);
  }
  return programs;
}

// The bundle as tools/bundle lays it out.
class GpuSuitesTest : public testing::Test {
 protected:
  GpuSuitesTest() {
    std::string folder = testing::TempDir() + "/bundle.XXXXXX";
    EXPECT_NE(mkdtemp(folder.data()), nullptr);
    folder_ = folder;
    fs::create_directory(folder_ + "/check");
    fs::copy_file(kList, folder_ + "/check/" + kSuitesFile);
    fs::copy_file("tests/gpu/gpu_check", folder_ + "/check/gpu_check");
    fs::copy_file("tools/gpu-check", folder_ + "/gpu-check");
    for (const auto& [name, path] : Programs()) {
      fs::create_symlink(path, folder_ + "/check/" + name);
    }
  }
  ~GpuSuitesTest() override { fs::remove_all(folder_); }

  ProgramEnd RunScript(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), folder_ + "/gpu-check");
    const absl::StatusOr<ProgramEnd> end =
        RunProgram(arguments, absl::InfiniteDuration(), folder_ + "/output");
    EXPECT_OK(end);
    return end.value_or(ProgramEnd());
  }

  std::string folder_;
};

TEST_F(GpuSuitesTest, EachProgramHasTestsOfTheNameThatItIsAskedFor) {
  ASSERT_OK_AND_ASSIGN(const std::vector<Suite> suites, ParseSuites(Read(kList)));
  EXPECT_EQ(suites.size(), Programs().size());
  for (const Suite& suite : suites) {
    SCOPED_TRACE(suite.name);
    const std::string program = folder_ + "/check/" + suite.name;
    std::vector<std::string> arguments = {program, "--gtest_list_tests",
                                          absl::StrCat("--gtest_filter=", suite.filter)};
    if (suite.is_bench()) arguments = {program, "--help"};
    ASSERT_OK_AND_ASSIGN(const ProgramEnd end,
                         RunProgram(arguments, absl::InfiniteDuration(), folder_ + "/output"));
    EXPECT_EQ(end.exit_status, 0);
    EXPECT_THAT(end.output, HasSubstr(suite.is_bench() ? "--json" : "\n  "));
  }
}

TEST_F(GpuSuitesTest, OnAMachineWithoutAGpuTheScriptSaysWhyAndEndsWithTwo) {
  if (QueryCudaVersions().driver_status.ok()) GTEST_SKIP() << "this machine has one";
  const ProgramEnd end = RunScript({"--out", folder_ + "/out.json"});
  EXPECT_EQ(end.exit_status, kExitNoGpu);
  EXPECT_THAT(end.output, HasSubstr("no usable GPU: "));
  const auto document = nlohmann::json::parse(Read(folder_ + "/out.json"));
  EXPECT_EQ(document["status"], "no usable GPU");
  EXPECT_NE(document["reason"], "");
}

TEST_F(GpuSuitesTest, ScriptTellsWrongUsageFromAMissingGpu) {
  EXPECT_EQ(RunScript({"--nonsense"}).exit_status, kExitWrongUsage);
  EXPECT_EQ(RunScript({"--only", "nothing", "--out", folder_ + "/out.json"}).exit_status,
            kExitWrongUsage);
  EXPECT_EQ(RunScript({"--help"}).exit_status, 0);
  fs::remove(folder_ + "/check/gpu_check");
  EXPECT_EQ(RunScript({}).exit_status, kExitWrongUsage);
}

// If a GPU was expected: programs that skip everything have not passed.
TEST_F(GpuSuitesTest, WhereAllIsSkippedNothingHasPassed) {
  if (QueryCudaVersions().driver_status.ok()) GTEST_SKIP() << "this machine has a GPU";
  CheckOptions options;
  options.folder = folder_ + "/check";
  options.out = folder_ + "/out.json";
  std::stringstream progress, table;
  EXPECT_EQ(RunCheck(options, GpuFacts(), &progress, &table), kExitFailed);
  const auto document = nlohmann::json::parse(Read(options.out));
  ASSERT_OK_AND_ASSIGN(const std::vector<Suite> suites, ParseSuites(Read(kList)));
  size_t turns = suites.size();
  for (const Suite& suite : suites) turns += suite.again.size();
  EXPECT_EQ(document["suites"].size(), turns);
  for (const auto& suite : document["suites"]) {
    SCOPED_TRACE(suite.dump());
    EXPECT_EQ(suite["passed"], 0);
    EXPECT_NE(suite["reason"], "");
    const std::string name = suite["name"];
    if (absl::StrContains(name, " under ")) {  // This check was told of no folders of tools.
      EXPECT_EQ(suite["outcome"], "no tool");
      continue;
    }
    ASSERT_OK_AND_ASSIGN(const auto named, ChooseSuites(suites, {name}));
    if (named[0].is_peer()) {  // Which its library may be there for.
      EXPECT_THAT(std::string(suite["outcome"]), AnyOf("no peer", "failed"));
      continue;
    }
    EXPECT_EQ(suite["outcome"], named[0].is_bench() ? "failed" : "ran nothing");
  }
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
