// Missing parts of PyTorch are reported, and are not a failure; a failing part becomes a row that
// says so. Over Python packages that have PyTorch's name and almost none of its contents.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/gpu/check_report.h"
#include "tests/gpu/run_program.h"

namespace tessera {
namespace gpu_check {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

class TorchPeersTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/torch-peers-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    ASSERT_EQ(setenv("PYTHONPATH", folder_.c_str(), 1), 0);
    ASSERT_EQ(setenv("PYTHONDONTWRITEBYTECODE", "1", 1), 0);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // A package of this name, and what its module has.
  void Have(const std::string& package, const std::string& text) {
    fs::create_directories(folder_ + "/" + package);
    std::ofstream(folder_ + "/" + package + "/__init__.py") << text;
  }
  SuiteResult Run(const std::vector<std::string>& flags = {}) {
    std::vector<std::string> arguments = {"tests/gpu/torch_peers", "--device=cpu",
                                          "--json=" + folder_ + "/rows"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const absl::StatusOr<ProgramEnd> end =
        RunProgram(arguments, absl::InfiniteDuration(), folder_ + "/log");
    EXPECT_OK(end);
    std::stringstream json;
    json << std::ifstream(folder_ + "/rows").rdbuf();
    Suite suite;
    suite.filter = "peer-rows";
    return JudgeBench(suite, end.value_or(ProgramEnd()), json.str(), &rows_);
  }

  std::string folder_;
  std::vector<BenchRow> rows_;
};

TEST_F(TorchPeersTest, MachineWithoutPythonLacksThePeer) {
  const std::string path = getenv("PATH");
  ASSERT_EQ(setenv("PATH", folder_.c_str(), 1), 0);
  const SuiteResult result = Run();
  ASSERT_EQ(setenv("PATH", path.c_str(), 1), 0);
  EXPECT_EQ(result.outcome, Outcome::kNoPeer);
  EXPECT_THAT(result.reason, HasSubstr("no Python"));
}

TEST_F(TorchPeersTest, PythonWithoutPyTorchLacksThePeer) {
  Have("torch", "raise ImportError('no such thing')");
  const SuiteResult result = Run();
  EXPECT_EQ(result.outcome, Outcome::kNoPeer);
  EXPECT_EQ(result.reason, "no PyTorch: no such thing");
}

TEST_F(TorchPeersTest, PyTorchWithoutWhatItIsComparedByLacksThePeer) {
  Have("torch", "__version__ = '1.13'");
  Have("torch/distributed", "");
  Have("torch/distributed/fsdp", "");
  const SuiteResult result = Run();
  EXPECT_EQ(result.outcome, Outcome::kNoPeer);
  EXPECT_THAT(result.reason, HasSubstr("PyTorch 1.13 is too old: "));
}

TEST_F(TorchPeersTest, WhatIsComparedIsFoundUnderItsFirstNameToo) {
  Have("torch", "__version__ = '2.4'\nclass device:\n  def __init__(self, name): self.type = name");
  Have("torch/distributed", "");
  Have("torch/distributed/fsdp", "");
  Have("torch/distributed/_composable", "");
  Have("torch/distributed/_composable/fsdp", "def fully_shard(module): pass");
  const SuiteResult result = Run();
  EXPECT_NE(result.outcome, Outcome::kNoPeer) << result.reason;
  EXPECT_EQ(rows_.size(), 3u);
}

// The machine's own Python, whatever it has: rows that are all measured, or what it lacks.
TEST_F(TorchPeersTest, MachinesOwnPyTorchIsMeasuredWhereItHasOne) {
  ASSERT_EQ(unsetenv("PYTHONPATH"), 0);
  const SuiteResult result = Run({"--rounds=2", "--warm-up-rounds=1", "--repeats=1", "--layers=2",
                                  "--width=16", "--batch=4", "--elements=64", "--ranks=2"});
  if (result.outcome == Outcome::kNoPeer) {
    EXPECT_FALSE(result.reason.empty());
    GTEST_SKIP() << result.reason;
  }
  EXPECT_EQ(result.outcome, Outcome::kPassed) << result.reason;
  EXPECT_EQ(rows_.size(), 2u + 4u + 4u);
  for (const BenchRow& row : rows_) EXPECT_TRUE(row.measured()) << row.error << row.absent;
}

TEST_F(TorchPeersTest, WhateverFailsIsARowThatSaysSo) {
  Have("torch",
       "__version__ = '2.9'\n"
       "class device:\n"
       "  def __init__(self, name): self.type = name\n"
       "def zeros(*args, **keys): raise TypeError('not these arguments')\n");
  Have("torch/distributed", "");
  Have("torch/distributed/fsdp", "def fully_shard(module): pass");
  const SuiteResult result = Run();
  EXPECT_EQ(result.outcome, Outcome::kFailed);
  ASSERT_EQ(rows_.size(), 3u);
  EXPECT_EQ(rows_[0].name, "torch: bench_adamw");
  EXPECT_EQ(rows_[0].error, "TypeError: not these arguments");
  EXPECT_THAT(rows_[1].error, HasSubstr("AttributeError: "));
  EXPECT_EQ(rows_[2].absent, "NCCL takes one rank a GPU, and there is one");
}

}  // namespace
}  // namespace gpu_check
}  // namespace tessera
