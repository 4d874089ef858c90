// Folders that PyTorch's DCP wrote in 2 processes, loaded into jobs of other worlds, through a real
// coordinator, worker, executors (threads) and sessions.
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/stored_model.h"
#include "tests/conformance/dcp/golden_folders.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::GoldenFolder;
using testing_support::ReadAll;
using testing_support::ReadGoldenFolder;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

class LoadDcpTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 16;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  absl::StatusOr<TrainerTeam> OpenTeam(const GoldenFolder& golden, int world_size) {
    SessionOptions options = ToyOptions(*cluster_, absl::StrCat("job", world_size), world_size);
    options.model = ModelSpec();
    UnitSpec& unit = options.model.units.emplace_back();
    unit.name = "root";
    for (const auto& [name, tensor] : golden.tensors)
      unit.parameters.push_back({name, tensor.shape, DType::kFp32});
    return TrainerTeam::Open(options);
  }
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(LoadDcpTest, FolderOfTwoRanksIsLoadedInAnyWorldToTheBit) {
  const GoldenFolder golden = ReadGoldenFolder("nested");
  ASSERT_EQ(golden.tensors.size(), 2);
  const std::string folder = golden.WriteOut();
  std::vector<float> expected;
  for (const auto& [name, tensor] : golden.tensors)
    expected.insert(expected.end(), tensor.values.begin(), tensor.values.end());
  for (const int world_size : {1, 2, 3, 8}) {
    SCOPED_TRACE(world_size);
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(golden, world_size));
    EXPECT_OK(team.RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(LoadModel(session, folder).status());
      ASSIGN_OR_RETURN(const std::vector<float> values, ReadAll(session));
      EXPECT_EQ(values, expected);
      return absl::OkStatus();
    }));
  }
}

TEST_F(LoadDcpTest, FolderThatWouldRunAFunctionIsRefusedByItsNameOnEveryRank) {
  const GoldenFolder golden = ReadGoldenFolder("nested");
  const std::string folder = golden.WriteOut();
  std::ofstream(folder + "/.metadata", std::ios::binary) << "\x80\x02"
                                                            "cos\nsystem\nX\x04"
                                                         << '\0' << '\0' << '\0' << "true\x85R.";
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(golden, 2));
  for (const absl::Status& status :
       team.Run([&](Session* session) { return LoadModel(session, folder).status(); })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'os.system'")));
  }
}

}  // namespace
}  // namespace tessera
