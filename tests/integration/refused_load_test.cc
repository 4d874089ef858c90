// A load publishes parameters while it reads them. Where it is refused in the end, trainers have
// what they had, in windows that were open all the while, too; and it trains on to the same bits.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/testing/flip_bit.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::FlipBit;
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
    ASSERT_OK_AND_ASSIGN(cluster_, StartCluster());
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, OpenTeam(*cluster_));
    team_ = std::make_unique<TrainerTeam>(std::move(team));
    ASSERT_OK(team_->TrainTo(2));
    ASSERT_OK(
        team_->RunAll([&](Session* session) { return SaveCheckpoint(session, folder_ + "/c"); }));
    ASSERT_OK(team_->TrainTo(3));
  }
  // Of just as many devices as ranks, so that they are on all workers.
  static absl::StatusOr<std::unique_ptr<LocalCluster>> StartCluster() {
    LocalCluster::Options options;
    options.num_workers = GetParam().num_workers;
    options.num_devices = kWorldSize / options.num_workers;
    return LocalCluster::Start(options);
  }
  static absl::StatusOr<TrainerTeam> OpenTeam(const LocalCluster& cluster) {
    SessionOptions job = ToyOptions(cluster, "job", kWorldSize);
    job.config.compute_dtype = GetParam().compute_dtype;
    std::vector<std::string> workers;
    for (int rank = 0; rank < kWorldSize; ++rank)
      workers.push_back(cluster.worker_address(rank * GetParam().num_workers / kWorldSize));
    return TrainerTeam::Open(job, workers);
  }
  void TearDown() override {
    team_.reset();
    cluster_.reset();
    std::filesystem::remove_all(folder_);
  }
  // Of its last byte: by then all parameters were read.
  void FlipLastBit() const { FlipBit(folder_ + "/c/optimizer.safetensors", -1, 0); }
  absl::Status Load(Session* session) const {
    return LoadCheckpoint(session, folder_ + "/c").status();
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
      const absl::Status status = Load(session);
      EXPECT_TRUE(absl::IsDataLoss(status)) << status;
      EXPECT_EQ(InWindows(session), after_step_3[session->rank()]) << "rank " << session->rank();
      return absl::OkStatus();
    }));
  }
  FlipLastBit();
  ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(Load(session));
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

TEST_P(RefusedLoadTest, NobodyIsAnsweredBeforeAllOfItsHostHaveTheirValuesAgain) {
  std::vector<std::string> after_step_3(kWorldSize);
  ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
    RETURN_IF_ERROR(UnshardAll(session));
    after_step_3[session->rank()] = InWindows(session);
    return absl::OkStatus();
  }));
  // One rank reads nothing, so that it has nothing to take back, and one is held as it does. It is
  // refused also where a slow machine has come to neither before they are disarmed.
  FlipLastBit();
  ArmFaultPoint("load.read", Fault());
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("load.take-back", hold);
  std::atomic<int> num_answered{0};
  absl::Notification all_of_a_host;
  std::thread trainers([&] {
    EXPECT_OK(team_->RunAll([&](Session* session) -> absl::Status {
      EXPECT_FALSE(Load(session).ok());
      const int per_host = kWorldSize / GetParam().num_workers;
      // The other host's may be.
      if (++num_answered == kWorldSize - per_host + 1) all_of_a_host.Notify();
      EXPECT_EQ(InWindows(session), after_step_3[session->rank()]) << "rank " << session->rank();
      return ReshardAll(session);
    }));
  });
  EXPECT_FALSE(all_of_a_host.WaitForNotificationWithTimeout(absl::Milliseconds(200)));
  DisarmAllFaultPoints();
  trainers.join();
  ASSERT_OK(team_->TrainTo(4));
}

TEST_P(RefusedLoadTest, ThatIsAJobsFirstLeavesItWithoutValuesForOthers) {
  ASSERT_OK_AND_ASSIGN(const auto cluster, StartCluster());
  ASSERT_OK_AND_ASSIGN(TrainerTeam first, OpenTeam(*cluster));
  FlipLastBit();
  for (const absl::Status& status : first.Run([&](Session* session) { return Load(session); }))
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  FlipLastBit();
  std::vector<std::string> trained(kWorldSize), loaded(kWorldSize);
  const auto read_into = [](std::vector<std::string>* all) {
    return [all](Session* session) -> absl::Status {
      RETURN_IF_ERROR(UnshardAll(session));
      (*all)[session->rank()] = InWindows(session);
      return ReshardAll(session);
    };
  };
  ASSERT_OK(first.TrainTo(2));  // From values of its own, the saved job's first.
  ASSERT_OK(first.RunAll(read_into(&trained)));
  ASSERT_OK(first.TrainTo(3));
  ASSERT_OK(first.RunAll([&](Session* session) { return Load(session); }));
  ASSERT_OK(first.RunAll(read_into(&loaded)));
  EXPECT_EQ(loaded, trained);
}

INSTANTIATE_TEST_SUITE_P(Jobs, RefusedLoadTest,
                         testing::Values(Case{"Fp32", 1}, Case{"Bf16", 1, DType::kBf16},
                                         Case{"Fp32OfTwoHosts", 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
