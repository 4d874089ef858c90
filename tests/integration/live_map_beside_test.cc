// Readings of mapped state while its job trains, from real workers and executors (processes). The values of each step tell which one it is, so that two in one reading are seen.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tessera/live_map.h"
#include "tessera/local_cluster.h"
#include "tests/testing/region_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/engine/group_page.h"

namespace tessera {
namespace {

using testing_support::MapRegionOf;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int64_t kNumel = 1 << 18;

// In each step every element of "w" becomes one less.
absl::Status CountDown(Session* session) {
  const std::vector<float> gradient(kNumel, 1.0f);
  return session->RunStep([&]() -> absl::Status {
    RETURN_IF_ERROR(session->Unshard(0));
    RETURN_IF_ERROR(session->Reshard(0));
    RETURN_IF_ERROR(session->AddGradient(0, 0, gradient));
    RETURN_IF_ERROR(session->Reduce(0));
    return session->Step().status();
  });
}

struct Beside {
  std::string name;
  bool optimizer_in_backward = false;
  int num_workers = 1;
};

class LiveMapBesideTest : public ::testing::TestWithParam<Beside> {
 protected:
  static constexpr int kRanks = 2;

  void StartTraining() {
    // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
    static const auto* const last = new grpc::CompletionQueue();
    ASSERT_NE(last, nullptr);
    LocalCluster::Options cluster;
    cluster.num_workers = GetParam().num_workers;
    cluster.num_devices = kRanks / GetParam().num_workers;
    cluster.executor_binary = "worker/tessera-executor";
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(cluster));
    for (int worker = 0; worker < cluster.num_workers; ++worker)
      reader_options_.worker_addresses.push_back(cluster_->worker_address(worker));
    query_.job_id = "toy";
    SessionOptions options = ToyOptions(*cluster_, "toy", kRanks);
    options.model = {{{"u", {{"w", {kNumel}, DType::kFp32}}}}};
    options.config.optimizer = OptimizerKind::kSgd;
    options.config.optimizer_in_backward = GetParam().optimizer_in_backward;
    options.config.groups[0].learning_rate = 1.0;
    options.config.groups[0].weight_decay = 0;
    std::vector<std::string> workers;
    for (int rank = 0; rank < kRanks; ++rank)
      workers.push_back(cluster_->worker_address(rank / cluster.num_devices));
    auto team = TrainerTeam::Open(options, workers);
    ASSERT_OK(team.status());
    team_.emplace(*std::move(team));
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->Initialize([](int, int, absl::Span<float> values) {
        std::fill(values.begin(), values.end(), 0.0f);
      });
    }));
    trainers_ = std::thread([this] {
      EXPECT_OK(team_->RunAll([this](Session* session) -> absl::Status {
        while (session->next_step() <= last_.load()) {
          RETURN_IF_ERROR(CountDown(session));
          completed_[session->rank()].store(session->next_step() - 1);
        }
        return absl::OkStatus();
      }));
      done_.store(true);
    });
  }
  // After a step that no rank has started yet.
  void EndTraining() {
    if (!trainers_.joinable()) return;
    last_.store(std::max(completed_[0].load(), completed_[1].load()) + 3);
    trainers_.join();
  }
  void TearDown() override { EndTraining(); }
  // Which all ranks have.
  int64_t completed() const { return std::min(completed_[0].load(), completed_[1].load()); }

  // One half of each span before all ranks have completed `step`, or the trainers have ended, and
  // the other one afterwards.
  void Copy(const LiveMap& map, int64_t step) {
    for (const bool second : {false, true}) {
      while (second && completed() < step && !done_.load()) std::this_thread::yield();
      char* to = copy_.data();
      for (const absl::string_view span : map.entries()[0].spans) {
        const size_t half = span.size() / 2, from = second ? half : 0;
        memcpy(to + from, span.data() + from, second ? span.size() - half : half);
        to += span.size();
      }
      ASSERT_EQ(to, copy_.data() + copy_.size());
    }
  }
  void ExpectCopyIsOf(int64_t step) const {
    const auto* values = reinterpret_cast<const float*>(copy_.data());
    ASSERT_TRUE(std::all_of(values, values + kNumel,
                            [step](float value) { return value == -static_cast<float>(step); }))
        << "at step " << step;
  }

  // Nobody ever held a version of this job, so no executor can have waited for it. Of one worker.
  static void ExpectNothingWasEverHeld() {
    const Mapping group = MapRegionOf(getpid(), "toy/group");
    ASSERT_TRUE(group.valid());
    for (const RankRecord& rank : reinterpret_cast<const GroupPage*>(group.data())->ranks) {
      EXPECT_EQ(rank.hold.held.load(), 0);
      EXPECT_EQ(rank.hold.changes.value.load(), 0u);
    }
  }

  std::unique_ptr<LocalCluster> cluster_;
  LiveReaderOptions reader_options_;
  LiveQuery query_;
  std::optional<TrainerTeam> team_;
  std::thread trainers_;
  std::atomic<int64_t> completed_[kRanks] = {};
  std::atomic<int64_t> last_{std::numeric_limits<int64_t>::max()};
  std::atomic<bool> done_{false};
  std::vector<char> copy_ = std::vector<char>(kNumel * sizeof(float));
};

TEST_P(LiveMapBesideTest, EveryReadingThatIsSaidToBeTrueIsOfOneStepWhileTrainingGoesOn) {
  constexpr int kWanted = 20;
  ASSERT_NO_FATAL_FAILURE(StartTraining());
  ASSERT_OK_AND_ASSIGN(const auto map, LiveMap::Open(reader_options_, query_));
  int num_true = 0, num_void = 0;
  int64_t last = 0;
  for (int64_t reading = 0; num_true < kWanted || num_void < kWanted; ++reading) {
    ASSERT_FALSE(done_.load());
    const absl::Status renewed = map->Refresh();
    if (absl::IsAborted(renewed)) continue;  // Steps are faster than it.
    ASSERT_OK(renewed);
    const int64_t step = map->version().trained_step;
    ASSERT_GE(step, last);
    last = step;
    // Every second one has a pause, of one step or of two, within which its memory is overwritten.
    const int64_t pause = reading % 4 == 1 ? 1 : reading % 4 == 3 ? 2 : 0;
    ASSERT_NO_FATAL_FAILURE(Copy(*map, pause == 0 ? 0 : step + pause));
    if (!map->Validate()) {
      ++num_void;
      continue;
    }
    ++num_true;
    ASSERT_LT(pause, 2) << "step " << step + 2 << " was completed meanwhile";
    ASSERT_NO_FATAL_FAILURE(ExpectCopyIsOf(step));
  }
  EndTraining();
  ASSERT_OK(map->Refresh());
  EXPECT_EQ(map->version().trained_step, last_.load());
  ASSERT_NO_FATAL_FAILURE(Copy(*map, 0));
  EXPECT_TRUE(map->Validate()) << "where nobody trains it stands";
  ExpectCopyIsOf(last_.load());
  ExpectNothingWasEverHeld();
}

INSTANTIATE_TEST_SUITE_P(Jobs, LiveMapBesideTest,
                         ::testing::Values(Beside{"Plain"}, Beside{"OptimizerInBackward", true},
                                           Beside{"TwoWorkers", false, 2}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace tessera
