// What README.md shows to be typed and compiled does what it says there.
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/demo/child_process.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

constexpr int kWorldSize = 2;

class ExampleTest : public ::testing::Test {
 protected:
  // Runs the programs side by side; all must succeed. What they print is in error_path().
  void RunAll(const std::vector<std::vector<std::string>>& commands) {
    std::vector<std::unique_ptr<demo::ChildProcess>> processes;
    for (const std::vector<std::string>& command : commands) {
      ASSERT_OK_AND_ASSIGN(processes.emplace_back(),
                           demo::ChildProcess::Start(command, error_path()));
    }
    for (auto& process : processes) EXPECT_EQ(process->Wait(), 0) << Slurp(error_path());
  }
  static std::string Slurp(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string error_path() const { return ::testing::TempDir() + "/errors"; }
};

TEST_F(ExampleTest, TrainsAndSavesTheModel) {
  LocalCluster::Options options;
  options.num_devices = kWorldSize;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
  const std::string model_path = ::testing::TempDir() + "/model.safetensors";
  std::vector<std::vector<std::string>> ranks;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    ranks.push_back({"/usr/bin/env", "TESSERA_COORDINATOR=" + cluster->coordinator_address(),
                     "TESSERA_WORKER=" + cluster->worker_address(), absl::StrCat("RANK=", rank),
                     absl::StrCat("WORLD_SIZE=", kWorldSize), "tests/example/train", "3",
                     model_path});
  }
  RunAll(ranks);
  const std::string model = Slurp(model_path);
  for (const char* name : {"embedding", "block0.up.weight", "block3.down.bias"}) {
    EXPECT_THAT(model, HasSubstr(absl::StrCat("\"", name, "\""))) << name;
  }
}

TEST_F(ExampleTest, ProgramWithoutLibtorchFindsTheLine) {
  const std::string path = ::testing::TempDir() + "/line.safetensors";
  RunAll({{"tests/example/fit_line", "2000", path}});
  // A header of JSON, and then both values.
  const std::string file = Slurp(path);
  ASSERT_GE(file.size(), 2 * sizeof(float));
  float values[2];
  memcpy(values, file.data() + file.size() - sizeof(values), sizeof(values));
  EXPECT_THAT(values, ::testing::UnorderedElementsAre(::testing::FloatNear(3, 1e-2),
                                                      ::testing::FloatNear(1, 1e-2)));
}

TEST_F(ExampleTest, LayoutReadsTheSpecFile) {
  RunAll({{"client/cli/tessera", "layout", "--spec", "tests/example/model.json", "--world-size",
           "64"}});
}

}  // namespace
}  // namespace tessera
