// Several jobs on one worker: each trains as if it were alone, has its own memory, and gives it
// back when it is deleted.
#include <unistd.h>

#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/cli/cli.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "layout/layout_digest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::MappingsOf;
using testing_support::ReadAll;
using testing_support::ReferenceRun;
using testing_support::ResidentBytesOf;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using Json = nlohmann::json;

constexpr int kWorldSize = 2;

class JobsTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2 * kWorldSize;
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  // What `tessera ARGS` prints.
  std::string Tessera(const std::vector<std::string>& args) {
    std::ostringstream out, err;
    EXPECT_EQ(cli::RunCli(args, {&out, &err, /*out_is_terminal=*/false}), 0) << err.str();
    return out.str();
  }
  // The job as the worker's own service, or the coordinator, shows it; null: not there.
  Json JobIn(const std::string& json, const std::string& job_id) {
    const Json parsed = Json::parse(json);
    for (const Json& job : parsed.at("jobs")) {
      if (job["job_id"] == job_id) return job;
    }
    return nullptr;
  }
  Json AtWorker(const std::string& job_id) {
    return JobIn(Tessera({"status", "--worker", cluster_->worker_address(), "--json"}), job_id);
  }
  Json AtCoordinator(const std::string& job_id) {
    return JobIn(Tessera({"top", "--coordinator", cluster_->coordinator_address(), "--json"}),
                 job_id);
  }
  void ExpectReference(TrainerTeam* team, const SessionOptions& options, int64_t steps) {
    std::vector<float> values;
    ASSERT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(auto all, ReadAll(session));
      if (session->rank() == 0) values = std::move(all);
      return absl::OkStatus();
    }));
    EXPECT_THAT(values, testing::Pointwise(testing::FloatNear(2e-6f),
                                           ReferenceRun(options.model, options.config, steps)));
  }

  std::unique_ptr<LocalCluster> cluster_;
};

int64_t Sum(const Json& job, const char* field) {
  int64_t sum = 0;
  if (job.is_null()) return -1;
  for (const Json& rank : job["ranks"]) sum += rank[field].get<int64_t>();
  return sum;
}

// What the kernel says that the job's regions hold, with the account's three kinds.
struct Kinds {
  int64_t parameters = 0, gradients = 0, optimizer = 0;
};

Kinds ResidentByKind(const std::string& job_id) {
  Kinds kinds;
  for (const auto& [label, bytes] : ResidentBytesOf(getpid(), job_id)) {
    if (label == "parameters") kinds.parameters += bytes;
    if (absl::EndsWith(label, "/gradients")) kinds.gradients += bytes;
    if (absl::EndsWith(label, "/state")) kinds.optimizer += bytes;
  }
  return kinds;
}

void ExpectAccount(const Json& job, const Kinds& kinds) {
  ASSERT_FALSE(job.is_null());
  EXPECT_EQ(Sum(job, "parameter_bytes"), kinds.parameters);
  EXPECT_EQ(Sum(job, "gradient_bytes"), kinds.gradients);
  EXPECT_EQ(Sum(job, "optimizer_bytes"), kinds.optimizer);
}

TEST_F(JobsTest, TwoJobsTrainSideBySideWithAccountsOfTheirOwnAndDeletingOneFreesItsMemory) {
  const SessionOptions small_options = ToyOptions(*cluster_, "small", kWorldSize, 2);
  const SessionOptions large_options = ToyOptions(*cluster_, "large", kWorldSize, 60);
  auto small = TrainerTeam::Open(small_options);
  ASSERT_OK(small);
  ASSERT_OK_AND_ASSIGN(TrainerTeam large, TrainerTeam::Open(large_options));
  std::thread other([&] { EXPECT_OK(small->TrainTo(12)); });
  EXPECT_OK(large.TrainTo(8));
  other.join();
  ExpectReference(&*small, small_options, 12);
  ExpectReference(&large, large_options, 8);

  const Kinds of_small = ResidentByKind("small"), of_large = ResidentByKind("large");
  EXPECT_GT(of_small.optimizer, 0);
  EXPECT_GT(of_large.parameters, of_small.parameters);
  EXPECT_GT(of_large.optimizer, of_small.optimizer);
  ExpectAccount(AtWorker("small"), of_small);
  ExpectAccount(AtWorker("large"), of_large);
  // The coordinator hears of it with a heartbeat.
  EXPECT_TRUE(Eventually([&] {
    return Sum(AtCoordinator("small"), "optimizer_bytes") == of_small.optimizer &&
           Sum(AtCoordinator("large"), "optimizer_bytes") == of_large.optimizer;
  }));
  ExpectAccount(AtCoordinator("large"), of_large);

  *small = TrainerTeam();  // Detaches.
  Tessera({"jobs", "delete", "small", "--coordinator", cluster_->coordinator_address()});
  EXPECT_TRUE(Eventually([] { return ResidentBytesOf(getpid(), "small").empty(); }))
      << "descriptors of the deleted job are left";
  for (const std::string& name : MappingsOf(getpid())) {
    EXPECT_FALSE(absl::StartsWith(name, "/memfd:tessera:small/")) << name << " is still mapped";
  }
  EXPECT_TRUE(AtWorker("small").is_null());
  EXPECT_TRUE(AtCoordinator("small").is_null());
  ExpectAccount(AtWorker("large"), of_large);
  ASSERT_OK(large.TrainTo(12));
  ExpectReference(&large, large_options, 12);
}

TEST_F(JobsTest, TrainersOfADeletedJobLearnItAlsoWhileTheyRecover) {
  SessionOptions options = ToyOptions(*cluster_, "gone", 1, 2);
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(options));
  ASSERT_OK(testing_support::TrainToy(session.get(), 2));
  Tessera({"jobs", "delete", "gone", "--coordinator", cluster_->coordinator_address()});
  const auto is_told = StatusIs(absl::StatusCode::kCancelled, testing::HasSubstr("job 'gone'"));
  EXPECT_THAT(testing_support::TrainToy(session.get(), int64_t{1} << 40), is_told);
  EXPECT_THAT(session->Recover(), is_told);
}

TEST_F(JobsTest, NextJobStartsAtOnceWhereTrainersAreDoneAndTheFirstContinuesAfterIt) {
  const SessionOptions first = ToyOptions(*cluster_, "first", 2 * kWorldSize);
  ASSERT_OK_AND_ASSIGN(std::optional<TrainerTeam> team, TrainerTeam::Open(first));
  ASSERT_OK(team->TrainTo(3));
  // Evaluation after the last step.
  ASSERT_OK(team->RunAll([](Session* session) -> absl::Status {
    for (int unit = 0; unit < session->num_units(); ++unit) {
      RETURN_IF_ERROR(session->Unshard(unit));
      RETURN_IF_ERROR(session->Reshard(unit));
    }
    return session->EndForward();
  }));
  team.reset();
  const SessionOptions next = ToyOptions(*cluster_, "next", 2 * kWorldSize);
  ASSERT_OK_AND_ASSIGN(team, TrainerTeam::Open(next));
  EXPECT_EQ(JobIn(Tessera({"jobs", "--json", "--coordinator", cluster_->coordinator_address()}),
                  "first")["state"],
            "COMPLETED");
  ASSERT_OK(team->TrainTo(2));
  team.reset();
  ASSERT_OK_AND_ASSIGN(team, TrainerTeam::Open(first));
  ASSERT_OK(team->TrainTo(5));
  ExpectReference(&*team, first, 5);
}

TEST_F(JobsTest, NumbersThatATrainerReportsAreShownUntilItReportsOthers) {
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(ToyOptions(*cluster_, "toy", 1)));
  const auto reported = [&] {
    return JobIn(Tessera({"status", "--json", "--coordinator", cluster_->coordinator_address()}),
                 "toy")["ranks"][0]["reported"];
  };
  ASSERT_OK(session->Report({{"loss", 0.5}, {"tokens", 1e6}}));
  EXPECT_TRUE(Eventually([&] { return reported() == Json{{"loss", 0.5}, {"tokens", 1e6}}; }));
  ASSERT_OK(session->Report({{"loss", 0.25}}));
  EXPECT_TRUE(Eventually([&] { return reported() == Json{{"loss", 0.25}}; }));
  EXPECT_THAT(Tessera({"status", "--coordinator", cluster_->coordinator_address()}),
              HasSubstr("rank 0 reports loss 0.25"));
  EXPECT_THAT(session->Report({{"the loss", 1}}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'the loss'")));
  std::map<std::string, double> many;
  for (int i = 0; i < 33; ++i) many[absl::StrCat(i)] = i;
  EXPECT_THAT(session->Report(many),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("33 values")));
  // And the trainer is none the worse for it.
  ASSERT_OK(testing_support::TrainToy(session.get(), 2));
}

TEST_F(JobsTest, LayoutThatTheCoordinatorServesIsTheTrainers) {
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(ToyOptions(*cluster_, "toy", 1)));
  const Json served = Json::parse(Tessera(
      {"layout", "--job", "toy", "--json", "--coordinator", cluster_->coordinator_address()}));
  const ModelLayout& layout = session->layout();
  ASSERT_EQ(served["units"].size(), layout.units.size());
  EXPECT_EQ(served["layout_digest"],
            absl::StrCat(absl::Hex(LayoutDigest(layout), absl::kZeroPad16)));
  for (size_t unit = 0; unit < layout.units.size(); ++unit) {
    const FlatLayout& flat = layout.units[unit].flat;
    EXPECT_EQ(served["units"][unit]["shard_elements"], layout.units[unit].shards.shard_numel());
    ASSERT_EQ(served["units"][unit]["parameters"].size(), flat.parameters().size());
    for (size_t p = 0; p < flat.parameters().size(); ++p) {
      const Json& parameter = served["units"][unit]["parameters"][p];
      EXPECT_EQ(parameter["name"], flat.parameters()[p].spec.name);
      EXPECT_EQ(parameter["offset_elements"], flat.parameters()[p].offset_elements);
      EXPECT_EQ(parameter["num_elements"], flat.parameters()[p].numel);
    }
  }
}

TEST_F(JobsTest, JobOfATebibyteWaitsAndSaysTheBytesWhileAnotherOneTrains) {
  v1::CreateJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_job_id("huge");
  ModelSpec model;
  model.units.push_back({"u", {{"w", {int64_t{1} << 20, int64_t{1} << 18}}}});
  *request.mutable_model() = EncodeModel(model);
  JobConfig config;
  config.world_size = kWorldSize;
  *request.mutable_config() = EncodeJobConfig(config);
  ASSERT_OK(CreateJob({cluster_->coordinator_address()}, request, absl::Now() + absl::Seconds(20)));
  ASSERT_OK_AND_ASSIGN(const v1::Job huge, GetJob({cluster_->coordinator_address()}, "huge",
                                                  absl::Now() + absl::Seconds(20)));
  EXPECT_EQ(huge.state(), v1::JOB_STATE_WAITING);
  EXPECT_THAT(huge.state_reason(),
              testing::AllOf(HasSubstr("2 ranks need 10.0 TiB of memory, 'local' has"),
                             HasSubstr("free of")));
  EXPECT_TRUE(AtWorker("huge").is_null()) << "no worker was asked";

  const SessionOptions options = ToyOptions(*cluster_, "toy", kWorldSize);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(3));
  ExpectReference(&team, options, 3);
}

}  // namespace
}  // namespace tessera
