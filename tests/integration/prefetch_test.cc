// Executors that run ahead of their trainers.
#include <sched.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ToyGradient;
using testing_support::ToyModel;
using testing_support::ToyStep;

constexpr int kUnits = 6;

// Looks until `done()` holds; the deadline is for the case that it never does.
bool Eventually(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  while (!done()) {
    if (absl::Now() > deadline) return false;
    sched_yield();
  }
  return true;
}

class PrefetchTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 6;  // Three jobs of two ranks.
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
    config_.world_size = 2;
    config_.max_gathered_units = 2;
  }
  void ForEachRank(const std::string& job, const std::function<void(Session*)>& body) {
    std::vector<std::thread> trainers;
    for (int rank = 0; rank < config_.world_size; ++rank) {
      trainers.emplace_back([&, rank] {
        SessionOptions options;
        options.coordinator_address = cluster_->coordinator_address();
        options.worker_address = cluster_->worker_address();
        options.job_id = job;
        options.rank = rank;
        options.model = ToyModel(kUnits);
        options.config = config_;
        auto session = Session::Open(options);
        ASSERT_OK(session);
        ASSERT_OK(InitializeToy(session->get()));
        body(session->get());
      });
    }
    for (std::thread& trainer : trainers) trainer.join();
  }
  JobConfig config_;
  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(PrefetchTest, ExecutorGathersAheadUpToTheLimitAndNoFarther) {
  ForEachRank("ahead", [](Session* session) {
    for (int unit = 0; unit < kUnits; ++unit) EXPECT_FALSE(session->gathered(unit)) << unit;
    ASSERT_OK(ToyStep(session, 1));
    EXPECT_TRUE(Eventually([&] { return session->gathered(1); }));
    EXPECT_TRUE(session->gathered(0)) << "in the recorded order";
    for (int unit = 2; unit < kUnits; ++unit) EXPECT_FALSE(session->gathered(unit)) << unit;
    ASSERT_OK(session->Unshard(0));
    EXPECT_TRUE(Eventually([&] { return session->gathered(2); }));
    for (int unit = 3; unit < kUnits; ++unit) EXPECT_FALSE(session->gathered(unit)) << unit;
    ASSERT_OK(session->Reshard(0));
  });
}

TEST_F(PrefetchTest, ExecutorGathersAheadUpToTheLimitInBytesAndNoFarther) {
  const auto bytes_of = [](const Session& session, int unit) {
    return session.layout().units[unit].shards.padded_numel() * int64_t{sizeof(float)};
  };
  config_.max_gathered_units = kUnits;
  int64_t two_units = 0;
  ForEachRank("bytes", [&](Session* session) {
    if (session->rank() == 0) two_units = bytes_of(*session, 0) + bytes_of(*session, 1);
    ASSERT_OK(ToyStep(session, 1));
    EXPECT_TRUE(Eventually([&] { return session->gathered(kUnits - 1); })) << "no limit in bytes";
  });
  for (const int64_t missing : {0, 1}) {
    config_.max_gathered_bytes = two_units - missing;
    ForEachRank(absl::StrCat("limited", missing), [&](Session* session) {
      ASSERT_OK(ToyStep(session, 1));
      EXPECT_TRUE(Eventually([&] { return session->gathered(missing == 0 ? 1 : 0); }));
      for (int unit = missing == 0 ? 2 : 1; unit < kUnits; ++unit)
        EXPECT_FALSE(session->gathered(unit)) << unit;
      ASSERT_OK(session->Unshard(kUnits - 1)) << "a unit that is asked for is not limited";
      ASSERT_OK(session->Reshard(kUnits - 1));
    });
  }
}

// One step with the units unsharded in this order.
absl::Status StepInOrder(Session* session, const std::vector<int>& order, int64_t step) {
  for (const int unit : order) RETURN_IF_ERROR(session->Unshard(unit));
  for (const int unit : order) {
    const auto& parameters = session->layout().units[unit].flat.parameters();
    for (size_t p = 0; p < parameters.size(); ++p) {
      const auto* values = reinterpret_cast<const float*>(session->parameter(unit, p));
      std::vector<float> gradient(parameters[p].numel);
      for (size_t i = 0; i < gradient.size(); ++i)
        gradient[i] = ToyGradient(values[i], i, session->rank(), step);
      RETURN_IF_ERROR(session->AddGradient(unit, p, gradient));
    }
    RETURN_IF_ERROR(session->Reduce(unit));
    RETURN_IF_ERROR(session->Reshard(unit));
  }
  return session->Step().status();
}

TEST_F(PrefetchTest, OrderThatDiffersFromTheRecordTrainsToTheSameBits) {
  const std::vector<int> forward = {0, 1, 2, 3, 4, 5}, backward = {5, 4, 3, 2, 1, 0};
  std::vector<float> straight, turned;
  ForEachRank("straight", [&](Session* session) {
    for (int64_t step = 1; step <= 4; ++step) ASSERT_OK(StepInOrder(session, forward, step));
    auto all = ReadAll(session);
    ASSERT_OK(all);
    if (session->rank() == 0) straight = *std::move(all);
  });
  // Every step differs from the one before it, so every guess is wrong.
  ForEachRank("turned", [&](Session* session) {
    for (int64_t step = 1; step <= 4; ++step)
      ASSERT_OK(StepInOrder(session, step % 2 == 0 ? backward : forward, step));
    auto all = ReadAll(session);
    ASSERT_OK(all);
    if (session->rank() == 0) turned = *std::move(all);
  });
  ASSERT_FALSE(straight.empty());
  EXPECT_EQ(straight, turned);
}

}  // namespace
}  // namespace tessera
