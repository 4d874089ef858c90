// The flight record of a rank whose executor, a process of its own, was killed by SIGKILL: read
// through the worker's service by `tessera dump`, as an operator would.
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "base/status_matchers.h"
#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::InitializeToy;
using testing_support::ToyModel;
using testing_support::ToyStep;
using testing_support::TrainToy;
using Json = nlohmann::json;

class FlightRecordTest : public testing::Test {
 protected:
  void Start(const std::string& faults) {
    StartCluster(1, faults);
    session_ = Open(0, 1);
  }
  void StartCluster(int num_devices, const std::string& faults) {
    LocalCluster::Options options;
    options.num_devices = num_devices;
    options.executor_binary = "worker/tessera-executor";
    if (!faults.empty()) options.executor_flags = {"--fault-points=" + faults};
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  std::unique_ptr<Session> Open(int rank, int world_size) {
    SessionOptions session;
    session.coordinator_address = cluster_->coordinator_address();
    session.worker_address = cluster_->worker_address();
    session.job_id = "toy";
    session.rank = rank;
    session.model = ToyModel(2);
    session.config.world_size = world_size;
    session.config.collective_timeout = absl::Seconds(1);
    session.config.groups[0].learning_rate = 0.01;
    session.attach_timeout = absl::Seconds(30);
    session.operation_timeout = absl::Seconds(60);
    auto opened = Session::Open(session);
    EXPECT_OK(opened);
    return opened.ok() ? *std::move(opened) : nullptr;
  }
  std::string Dump(std::vector<std::string> flags) {
    std::ostringstream out, err;
    std::vector<std::string> args = {"dump", "toy", "--worker", cluster_->worker_address()};
    args.insert(args.end(), flags.begin(), flags.end());
    EXPECT_EQ(cli::RunCli(args, {&out, &err, false}), kExitOk) << err.str();
    return out.str();
  }
  // Rank 0's records of operation `op` in `step`.
  std::vector<Json> Records(const std::string& op, int64_t step) {
    const Json dump = Json::parse(Dump({"--json", "--rank", "0"}), nullptr, false);
    std::vector<Json> found;
    EXPECT_EQ(dump["ranks"].size(), 1);
    EXPECT_EQ(dump["ranks"][0]["invalid_records"], 0);
    for (const Json& record : dump["ranks"][0]["records"]) {
      if (record["op"] == op && record["step"] == step) found.push_back(record);
    }
    return found;
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<Session> session_;
};

TEST_F(FlightRecordTest, OperationInFlightWhenTheExecutorWasKilledIsInTheRecordOfItsEpoch) {
  Start("step.before-vote=kill@3");
  ASSERT_OK(TrainToy(session_.get(), 4));  // Step 3 is tried twice, by two executors.
  const std::vector<Json> tries = Records("step", 3);
  ASSERT_EQ(tries.size(), 2);
  EXPECT_EQ(tries[0]["epoch"], 1);
  EXPECT_EQ(tries[0]["state"], "cut off, running");
  EXPECT_NE(tries[0]["started_steady_ns"], nullptr);
  EXPECT_EQ(tries[0]["done_steady_ns"], nullptr);
  EXPECT_EQ(tries[1]["epoch"], 2);
  EXPECT_EQ(tries[1]["state"], "done");
  EXPECT_LT(tries[0]["number"], tries[1]["number"]);
  const std::vector<Json> reductions = Records("reduce", 3);
  ASSERT_EQ(reductions.size(), 4) << "each of two units in each try";
  for (const Json& reduction : reductions) {
    EXPECT_EQ(reduction["state"], "done");
    EXPECT_EQ(reduction["stream"], "post-backward");
    EXPECT_GT(reduction["bytes"], 0);
    EXPECT_THAT(reduction["unit"].get<std::string>(), HasSubstr("unit"));
  }
  EXPECT_THAT(Dump({"--last", "1000"}), HasSubstr("cut off, running"));
}

TEST_F(FlightRecordTest, RecordIsThereThoughNoExecutorOfTheRankEverFinishedAStep) {
  Start("step.before-vote=kill@1");
  ASSERT_OK(InitializeToy(session_.get()));
  EXPECT_FALSE(ToyStep(session_.get(), 1).ok());
  const std::vector<Json> tries = Records("step", 1);
  ASSERT_EQ(tries.size(), 1);
  EXPECT_EQ(tries[0]["epoch"], 1);
  EXPECT_EQ(tries[0]["done_steady_ns"], nullptr);
}

TEST_F(FlightRecordTest, ReductionThatAPeerNeverCameToIsNotDone) {
  StartCluster(2, "");
  const auto train = [](Session* session) {
    ASSERT_NE(session, nullptr);
    ASSERT_OK(TrainToy(session, 1));
  };
  std::unique_ptr<Session> idle;
  std::thread peer([&] {
    idle = Open(1, 2);
    train(idle.get());
  });
  session_ = Open(0, 2);
  train(session_.get());
  peer.join();
  // By its record rank 0 asks nobody; its peer does nothing at all in step 2.
  EXPECT_THAT(ToyStep(session_.get(), 2), StatusIs(absl::StatusCode::kAborted, testing::_));
  const std::vector<Json> reductions = Records("reduce", 2);
  ASSERT_EQ(reductions.size(), 2);
  EXPECT_NE(reductions[0]["started_steady_ns"], nullptr);
  EXPECT_EQ(reductions[0]["done_steady_ns"], nullptr);
  EXPECT_EQ(reductions[1]["started_steady_ns"], nullptr) << "behind one that failed";
}

}  // namespace
}  // namespace tessera
