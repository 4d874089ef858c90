// A load publishes parameters while it reads them. Where it is refused in the end, trainers have
// what they had, in windows that were open all the while, too; and it trains on to the same bits.
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/cpp/checkpoint.h"
#include "client/cpp/local_cluster.h"
#include "gtest/gtest.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::ToyOptions;
using testing_support::TrainerTeam;

struct Case {
  const char* name;
  int num_workers;
  DType compute_dtype = DType::kFp32;
};
constexpr int kWorldSize = 4;

class RefusedLoadTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    folder_ = "/tmp/tessera-refused-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
    LocalCluster::Options options;
    options.num_workers = GetParam().num_workers;
    options.num_devices = kWorldSize / options.num_workers;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    SessionOptions job = ToyOptions(*cluster_, "job", kWorldSize);
    job.config.compute_dtype = GetParam().compute_dtype;
    std::vector<std::string> workers;
    for (int rank = 0; rank < kWorldSize; ++rank)
      workers.push_back(cluster_->worker_address(rank / options.num_devices));
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(job, workers));
    team_ = std::make_unique<TrainerTeam>(std::move(team));
    ASSERT_OK(team_->TrainTo(2));
    ASSERT_OK(
        team_->RunAll([&](Session* session) { return SaveCheckpoint(session, folder_ + "/c"); }));
    ASSERT_OK(team_->TrainTo(3));
  }
  void TearDown() override {
    team_.reset();
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }
  // A bit of its last byte: by then all parameters were read.
  void FlipLastBit() const {
    const std::string path = folder_ + "/c/optimizer.safetensors";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto last = static_cast<int64_t>(std::filesystem::file_size(path)) - 1;
    file.seekg(last);
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(last);
    file.put(byte);
  }
  // The bytes of all units, which are open.
  static std::string InWindows(Session* session) {
    std::string all;
    for (int unit = 0; unit < session->num_units(); ++unit) {
      const auto& parameters = session->layout().units[unit].flat.parameters();
      for (size_t p = 0; p < parameters.size(); ++p) {
        all.append(reinterpret_cast<const char*>(session->parameter(unit, p)),
                   parameters[p].numel * SizeBytes(GetParam().compute_dtype));
      }
    }
    return all;
  }
  static absl::Status UnshardAll(Session* session) {
    for (int unit = 0; unit < session->num_units(); ++unit) RETURN_IF_ERROR(session->Unshard(unit));
    return absl::OkStatus();
  }
  static absl::Status ReshardAll(Session* session) {
    for (int unit = 0; unit < session->num_units(); ++unit) RETURN_IF_ERROR(session->Reshard(unit));
    return absl::OkStatus();
  }

  std::string folder_;
  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
};

TEST_P(RefusedLoadTest, LeavesWindowsAsTheyWereAndALoadThatIsTakenShowsInThem) {
  constexpr int kRefused = 5;
  std::vector<std::string> after_step_3(kWorldSize), loaded(kWorldSize);
  FlipLastBit();
  ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(UnshardAll(session));
    after_step_3[session->rank()] = InWindows(session);
    return absl::OkStatus();
  }));
  for (int i = 0; i < kRefused; ++i) {
    ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
      const absl::Status status = LoadCheckpoint(session, folder_ + "/c").status();
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_EQ(InWindows(session), after_step_3[session->rank()]) << "rank " << session->rank();
      return absl::OkStatus();
    }));
  }
  FlipLastBit();
  ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(LoadCheckpoint(session, folder_ + "/c").status());
    loaded[session->rank()] = InWindows(session);
    RETURN_IF_ERROR(ReshardAll(session));
    EXPECT_EQ(session->next_step(), 3);
    return absl::OkStatus();
  }));
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_EQ(loaded[rank], loaded[0]);
  EXPECT_NE(loaded[0], after_step_3[0]);
  // The step that was taken before, again.
  ASSERT_OK(team_->TrainTo(3));
  ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(UnshardAll(session));
    EXPECT_EQ(InWindows(session), after_step_3[session->rank()]);
    return ReshardAll(session);
  }));
}

INSTANTIATE_TEST_SUITE_P(Jobs, RefusedLoadTest,
                         testing::Values(Case{"Fp32", 1}, Case{"Bf16", 1, DType::kBf16},
                                         Case{"Fp32OfTwoHosts", 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
