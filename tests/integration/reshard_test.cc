// When the slices of other hosts are gathered and given back, by strategy: in bytes, from the
// flight records, and in pages, from the kernel.
#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "job/reshard_after_forward.h"
#include "shm/region.h"
#include "tessera/local_cluster.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing_support::FlightOp;
using testing_support::ReadAll;
using testing_support::ReadFlightLog;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kRanks = 4, kHosts = 2, kRoot = 0, kBlock = 1;
constexpr int64_t kNumel = 65536, kSlicePages = kNumel * 4 / kRanks / kPageBytes;
constexpr int64_t kSliceBytes = kSlicePages * kPageBytes;  // A rank fetches one of the other host.

ModelSpec TwoUnits() {
  ModelSpec model;
  model.units.push_back({"root", {{"root.w", {16}, DType::kFp32}}});
  model.units.push_back({"block", {{"block.w", {kNumel}, DType::kFp32}}});
  return model;
}

bool Eventually(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!done()) {
    if (absl::Now() > deadline) return false;
    sched_yield();
  }
  return true;
}

// How many pages of the block its host has in memory.
int64_t PagesOfBlock(const Session& session) {
  std::vector<unsigned char> resident(kNumel * 4 / kPageBytes);
  auto* begin = const_cast<std::byte*>(session.parameters(kBlock));
  EXPECT_EQ(mincore(begin, kNumel * 4, resident.data()), 0);
  return std::count_if(resident.begin(), resident.end(), [](unsigned char p) { return p & 1; });
}

absl::Status GiveGradient(Session* session, int unit) {
  const int64_t numel = session->layout().units[unit].flat.unpadded_numel();
  const auto* values = reinterpret_cast<const float*>(session->parameter(unit, 0));
  std::vector<float> gradient(values, values + numel);
  for (float& g : gradient) g = g * 0.5f + static_cast<float>(session->rank() + 1);
  RETURN_IF_ERROR(session->AddGradient(unit, 0, gradient));
  return session->Reduce(unit);
}

// As the libtorch adapter opens and closes windows under FULL_SHARD. `between` is called after
// forward and after backward, with all windows of the block closed; after forward not if the block
// is kept for backward.
absl::Status TrainStep(Session* session, const std::function<void(bool after_backward)>& between,
                       bool keep = false) {
  RETURN_IF_ERROR(session->Unshard(kRoot));
  RETURN_IF_ERROR(session->Unshard(kBlock));
  if (!keep) {
    RETURN_IF_ERROR(session->Reshard(kBlock));
    between(false);
    RETURN_IF_ERROR(session->Unshard(kBlock));
  }
  RETURN_IF_ERROR(GiveGradient(session, kBlock));
  RETURN_IF_ERROR(session->Reshard(kBlock));
  RETURN_IF_ERROR(GiveGradient(session, kRoot));
  RETURN_IF_ERROR(session->Reshard(kRoot));
  between(true);
  return session->Step().status();
}

struct Rule {
  const char* name;
  std::function<void(JobConfig*)> apply;
  bool gathers_each_window;
};

class ReshardTest : public testing::TestWithParam<Rule> {
 protected:
  void Open() {
    LocalCluster::Options cluster;
    cluster.num_workers = kHosts;
    cluster.num_devices = kRanks / kHosts;
    auto started = LocalCluster::Start(cluster);
    ASSERT_OK(started);
    cluster_ = *std::move(started);
    SessionOptions options = ToyOptions(*cluster_, "toy", kRanks);
    options.model = TwoUnits();
    GetParam().apply(&options.config);
    std::vector<std::string> workers;
    for (int rank = 0; rank < kRanks; ++rank) workers.push_back(WorkerOf(rank));
    auto team = TrainerTeam::Open(options, workers);
    ASSERT_OK(team);
    team_ = std::make_unique<TrainerTeam>(*std::move(team));
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->Initialize([](int, int, absl::Span<float> values) {
        for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) * 0.25f;
      });
    }));
  }
  // What the rank fetched for each of the block's windows in the step.
  std::vector<int64_t> BytesOfBlock(int rank, int step) {
    std::vector<int64_t> bytes;
    for (const FlightOp& op : ReadFlightLog(WorkerOf(rank), "toy", rank)) {
      if (op.step == step && op.op == "unshard" && op.unit == "block") bytes.push_back(op.bytes);
    }
    return bytes;
  }
  std::string WorkerOf(int rank) { return cluster_->worker_address(rank * kHosts / kRanks); }

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
};

TEST_P(ReshardTest, SlicesOfOtherHostsComeAndGoAsTheStrategySays) {
  Open();
  constexpr int kSteps = 3;  // The first one is recorded, the others are gathered ahead.
  const int64_t own = kSlicePages * kRanks / kHosts;
  for (int step = 1; step <= kSteps; ++step) {
    ASSERT_OK(team_->RunAll([&](Session* session) {
      return TrainStep(session, [&](bool after_backward) {
        // A late rank, or one that gathers ahead for backward, has its window still.
        if (!GetParam().gathers_each_window && !after_backward) {
          EXPECT_EQ(PagesOfBlock(*session), 2 * own);
        }
        if (GetParam().gathers_each_window && after_backward) {
          EXPECT_TRUE(Eventually([&] { return PagesOfBlock(*session) == own; }));
        }
      });
    }));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    for (int step = 1; step <= kSteps; ++step)
      EXPECT_EQ(
          BytesOfBlock(rank, step),
          (std::vector<int64_t>{kSliceBytes, GetParam().gathers_each_window ? kSliceBytes : 0}))
          << "rank " << rank << ", step " << step;
  }
}

TEST_P(ReshardTest, WindowThatIsKeptForBackwardForSomeStepsIsGatheredOnceAndChangesNoBit) {
  constexpr int kSteps = 6;
  const int64_t own = kSlicePages * kRanks / kHosts;
  std::vector<std::vector<float>> models;
  for (const bool keep : {false, true}) {
    const auto keeps = [keep](int step) { return keep && (step == 3 || step == 4); };
    team_.reset();
    Open();
    for (int step = 1; step <= kSteps; ++step) {
      ASSERT_OK(team_->RunAll([&](Session* session) {
        const auto look = [&](bool after_backward) {
          // Where the order changes, executors gathered ahead for a window that nobody opens.
          if (GetParam().gathers_each_window && after_backward && step != 3) {
            EXPECT_TRUE(Eventually([&] { return PagesOfBlock(*session) == own; }));
          }
        };
        return TrainStep(session, look, keeps(step));
      }));
    }
    for (int rank = 0; rank < kRanks; ++rank) {
      for (int step = 1; step <= kSteps; ++step) {
        std::vector<int64_t> bytes = {kSliceBytes};
        if (!keeps(step)) bytes.push_back(GetParam().gathers_each_window ? kSliceBytes : 0);
        EXPECT_EQ(BytesOfBlock(rank, step), bytes) << "rank " << rank << ", step " << step;
      }
    }
    ASSERT_OK(team_->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(std::vector<float> model, ReadAll(session));
      if (session->rank() == 0) models.push_back(std::move(model));
      return absl::OkStatus();
    }));
  }
  EXPECT_EQ(models[0], models[1]);
}

TEST_P(ReshardTest, FirstForwardGivesTheMemoryBackWhereNobodyGathersAhead) {
  Open();
  const int64_t own = kSlicePages * kRanks / kHosts;
  ASSERT_OK(team_->RunAll([&](Session* session) {
    RETURN_IF_ERROR(session->Unshard(kBlock));
    EXPECT_EQ(PagesOfBlock(*session), 2 * own);
    RETURN_IF_ERROR(session->Reshard(kBlock));
    const int64_t left = GetParam().gathers_each_window ? own : 2 * own;
    EXPECT_TRUE(Eventually([&] { return PagesOfBlock(*session) == left; }));
    return absl::OkStatus();
  }));
}

TEST_P(ReshardTest, WrittenParametersAreSeenInTheNextWindowThoughItWasGatheredAhead) {
  Open();
  const auto nothing = [](bool) {};
  for (int step = 1; step <= 2; ++step)
    ASSERT_OK(team_->RunAll([&](Session* session) { return TrainStep(session, nothing); }));
  // Before the write, executors gather ahead for the step's first windows.
  ASSERT_OK(team_->RunAll([](Session* session) {
    return session->WriteParameters({kRoot, kBlock}, [](int, int, absl::Span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    });
  }));
  ASSERT_OK(team_->RunAll([&](Session* session) {
    RETURN_IF_ERROR(session->Unshard(kRoot));
    RETURN_IF_ERROR(session->Unshard(kBlock));
    const auto* values = reinterpret_cast<const float*>(session->parameter(kBlock, 0));
    for (int64_t i = 0; i < kNumel; ++i) {
      if (values[i] == static_cast<float>(i)) continue;
      return absl::InternalError(absl::StrCat("element ", i, " is ", values[i]));
    }
    RETURN_IF_ERROR(session->Reshard(kBlock));
    return session->Reshard(kRoot);
  }));
}

INSTANTIATE_TEST_SUITE_P(
    Rules, ReshardTest,
    testing::Values(
        Rule{"FullShard", [](JobConfig* c) { SetReshardAfterForward(true, c); }, true},
        Rule{"ShardGradOp", [](JobConfig* c) { SetReshardAfterForward(false, c); }, false},
        Rule{"KeptByAHost", [](JobConfig* c) { EXPECT_OK(SetReshardAfterForward(2, c)); }, false},
        Rule{"NoShard", [](JobConfig* c) { c->strategy = Strategy::kNoShard; }, false}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
