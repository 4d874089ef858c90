// What clients, trainers and workers tell the coordinator, and what it answers, is lost, repeated
// and delayed: jobs are made, trained, saved, completed and deleted once, the final model is the
// same bytes as that of an undisturbed run, and no answer is wrong. Real processes.
// Of hand-overs: lossy_hand_over_test; of reading and setting a job's values: lossy_live_test.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "client/cli/saves_client.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "job/job_codec.h"
#include "net/credentials.h"
#include "proto/coordinator.grpc.pb.h"
#include "proto/grpc_status.h"
#include "proto/health.grpc.pb.h"
#include "tessera/session.h"
#include "tests/fault/lossy/lossy_cluster.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::IsEmpty;
using testing_support::CliResult;
using testing_support::Eventually;
using testing_support::RunTessera;
using testing_support::TrainerTeam;

absl::Time Soon() { return absl::Now() + absl::Seconds(60); }

class LossyTest : public LossyCluster {
 protected:
  std::shared_ptr<grpc::Channel> Dial(const std::string& address) {
    auto channel = OpenChannel({address}, {});
    EXPECT_OK(channel);
    return channel.ok() ? *channel : nullptr;
  }
  int CountInWorkersLog(absl::string_view text) {
    const std::vector<std::string> parts =
        absl::StrSplit(testing_support::ReadFile(folder_ + "/worker.log"), text);
    return static_cast<int>(parts.size()) - 1;
  }
  // Of a job with this many ranks.
  static v1::CreateJobRequest CreateRequest(int world_size) {
    JobConfig config;
    config.world_size = world_size;
    v1::CreateJobRequest create;
    create.mutable_config()->CopyFrom(EncodeJobConfig(config));
    ModelSpec model;
    model.units.push_back({"unit", {{"w", {4}}}});
    *create.mutable_model() = EncodeModel(model);
    create.set_submitting_rank(-1);
    create.set_job_id("gpt");
    create.set_request_id(NewRequestId());
    return create;
  }
};

TEST_P(LossyTest, TrainingGoesOnToTheSameBitsAndTheJobIsCompleted) {
  ASSERT_FALSE(UndisturbedModel().empty());
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
  StartWorker();
  for (int rank = 0; rank < kWorldSize; ++rank) StartTrainer(rank);
  AwaitStep(0, kSteps / 3);
  trainers_[1]->Kill(SIGKILL);  // So that there is more to say than at the beginning.
  trainers_[1]->Wait();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
  v1::Job job;
  EXPECT_TRUE(Eventually([&] {
    job = GetJob({coordinator_address()}, "toy", Soon()).value_or(v1::Job());
    return job.state() == v1::JOB_STATE_COMPLETED;
  })) << job.ShortDebugString();
  EXPECT_EQ(job.committed_step(), kSteps);
  const std::string fates = EndLayer();
  EXPECT_FALSE(absl::StrContains(fates, ", 0 cut")) << fates;
}

TEST_P(LossyTest, WorkerKeepsItsLifeAndItsJobHoweverOftenItIsRegisteredAndConnects) {
  coordinator_flags_ = {"--heartbeat-interval=10ms"};  // So that its streams are cut soon.
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartLayer(kEach));
  StartWorker();
  ASSERT_OK(CreateJob({coordinator_address()}, CreateRequest(/*world_size=*/1), Soon()));
  v1::Job before;
  ASSERT_TRUE(Eventually([&] {
    before = GetJob({coordinator_address()}, "gpt", Soon()).value_or(v1::Job());
    return before.state() == v1::JOB_STATE_RUNNING;
  }));
  const auto incarnation = [&] {
    const CliResult listed = RunTessera(coordinator_address(), {"workers", "--json"});
    std::smatch found;
    EXPECT_TRUE(std::regex_search(listed.out, found, std::regex("\"incarnation\": [0-9]+")))
        << listed.out << listed.err;
    return found.str();
  };
  const std::string first = incarnation();
  EXPECT_TRUE(Eventually([&] { return CountInWorkersLog("connected to coordinator") > kEach; }));
  EXPECT_EQ(incarnation(), first);
  ASSERT_OK_AND_ASSIGN(const v1::Job after, GetJob({coordinator_address()}, "gpt", Soon()));
  EXPECT_EQ(after.epoch(), before.epoch()) << after.state_reason();
  EXPECT_EQ(after.state(), v1::JOB_STATE_RUNNING);
  const std::string fates = EndLayer();
  ExpectEveryFate(fates, "tessera.v1.Membership/RegisterWorker");
  ExpectEveryFate(fates, "tessera.v1.Membership/Connect");
}

TEST_P(LossyTest, JobsAreMadeAndDeletedOnceHoweverOftenItIsSaid) {
  StartCoordinator();
  ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
  const auto stub = v1::Jobs::NewStub(Dial(dialled_address()));
  int64_t last_generation = 0;
  int num_watched = 0;
  for (int i = 0; i < 20; ++i) {
    SCOPED_TRACE(i);
    const v1::CreateJobRequest create = CreateRequest(/*world_size=*/1);
    ASSERT_OK_AND_ASSIGN(const v1::Job made, CreateJob({dialled_address()}, create, Soon()));
    EXPECT_GT(made.generation(), last_generation);
    last_generation = made.generation();
    for (const std::string& address : {coordinator_address(), dialled_address()}) {
      ASSERT_OK_AND_ASSIGN(const v1::Job seen, GetJob({address}, "gpt", Soon()));
      EXPECT_EQ(seen.generation(), made.generation());
    }
    grpc::ClientContext context;
    v1::WatchJobRequest watch;
    watch.set_job_id("gpt");
    const auto watched = stub->WatchJob(&context, watch);
    v1::Job job;
    const bool is_seen = watched->Read(&job);
    EXPECT_TRUE(!is_seen || job.generation() == made.generation());
    v1::DeleteJobRequest erase;
    erase.set_job_id("gpt");
    erase.set_request_id(NewRequestId());
    ASSERT_OK(DeleteJob({dialled_address()}, erase, Soon()));
    EXPECT_TRUE(absl::IsNotFound(GetJob({coordinator_address()}, "gpt", Soon()).status()));
    while (watched->Read(&job)) EXPECT_EQ(job.generation(), made.generation());
    const absl::Status end = FromGrpcStatus(watched->Finish());
    EXPECT_TRUE(absl::IsUnavailable(end) || (end.ok() && is_seen)) << end;
    num_watched += end.ok() ? 1 : 0;
  }
  EXPECT_GT(num_watched, 0);
  const std::string fates = EndLayer();
  for (const char* method : {"CreateJob", "GetJob", "WatchJob", "DeleteJob"})
    ExpectEveryFate(fates, absl::StrCat("tessera.v1.Jobs/", method));
}

struct Question {
  std::vector<std::string> command;  // Of `tessera`.
  std::string method;
};

TEST_P(LossyTest, QuestionsAreAnsweredRightOrTheirAskerHearsThatTheyWereLost) {
  const std::vector<Question> questions = {
      {{"status", "gpt", "--json"}, "tessera.v1.Jobs/GetJob"},
      {{"jobs", "--json"}, "tessera.v1.Jobs/ListJobs"},
      {{"layout", "--job", "gpt", "--json"}, "tessera.v1.Jobs/GetLayout"},
      {{"workers", "--json"}, "tessera.v1.Membership/ListWorkers"},
      {{"events", "--json"}, "tessera.v1.Events/ListEvents"},
      {{"saves", "--job", "gpt", "--json"}, "tessera.v1.Checkpoints/ListCheckpoints"}};
  StartCoordinator();
  StartWorker();
  // It waits for a device more than there are, and for a step, so that all answers stay.
  ASSERT_TRUE(Eventually([&] { return CountInWorkersLog("connected to coordinator") > 0; }));
  const auto create = CreateRequest(kWorldSize + 1);
  ASSERT_OK(CreateJob({coordinator_address()}, create, Soon()));
  ASSERT_EQ(RunTessera(coordinator_address(),
                       {"save", "--job", "gpt", "--to", folder_ + "/never", "--no-wait"})
                .exit_code,
            0);
  ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
  const auto ask = [](const std::string& address, const Question& question) {
    CliResult asked = RunTessera(address, question.command);
    // When it was heard of last.
    asked.out = std::regex_replace(asked.out, std::regex("\"silent_ms\": [0-9]+"), "");
    return asked;
  };
  for (const Question& question : questions) {
    SCOPED_TRACE(question.method);
    const CliResult right = ask(coordinator_address(), question);
    ASSERT_EQ(right.exit_code, 0) << right.err;
    for (int i = 0; i < 2 * kSome; ++i) {
      const CliResult asked = ask(dialled_address(), question);
      if (asked.exit_code == 0) {
        EXPECT_EQ(asked.out, right.out);
      } else {
        EXPECT_TRUE(absl::StrContains(asked.err, "UNAVAILABLE")) << asked.err;
      }
    }
  }
  const auto health = grpc::health::v1::Health::NewStub(Dial(dialled_address()));
  for (int i = 0; i < kSome; ++i) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckResponse reply;
    const absl::Status status = FromGrpcStatus(health->Check(&context, {}, &reply));
    EXPECT_TRUE(absl::IsUnavailable(status) ||
                reply.status() == grpc::health::v1::HealthCheckResponse::SERVING)
        << status;
  }
  const std::string fates = EndLayer();
  for (const Question& question : questions) ExpectEveryFate(fates, question.method);
  ExpectEveryFate(fates, "grpc.health.v1.Health/Check");
}

class LossySaveTest : public LossyTest {
 protected:
  void TearDown() override {
    team_.reset();
    LossyTest::TearDown();
  }
  // All of its parts pass the layer.
  void StartJob() {
    StartCoordinator();
    ASSERT_NO_FATAL_FAILURE(StartLayer(kSome));
    StartWorker();
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions()));
    team_.emplace(std::move(team));
    ASSERT_OK(team_->TrainTo(1));
    cli::Endpoint endpoint;
    endpoint.address = dialled_address();
    ASSERT_OK_AND_ASSIGN(client_, cli::SavesClient::Create(endpoint));
    endpoint.address = coordinator_address();
    ASSERT_OK_AND_ASSIGN(undisturbed_, cli::SavesClient::Create(endpoint));
  }
  std::string PathOf(int number) const { return absl::StrCat(folder_, "/saves/", number); }
  // As clients do that lose the coordinator: with the same id again.
  v1::Save Ask(int number) {
    v1::RequestSaveRequest request;
    request.set_request_id(absl::StrCat("request ", number));
    request.set_job_id("toy");
    request.mutable_spec()->set_path(PathOf(number));
    const auto save = Retried<v1::Save>([&] { return client_->Request(request); });
    EXPECT_OK(save);
    return save.value_or(v1::Save());
  }
  void TakeStep() { ASSERT_OK(team_->TrainTo(team_->session(0)->next_step())); }
  // A step is taken whenever it waits for one.
  v1::Save Await(int64_t number) {
    absl::StatusOr<v1::Save> save;
    EXPECT_TRUE(Eventually([&] {
      save = Retried<v1::Save>([&] { return client_->Get("toy", number); });
      if (save.ok() && save->waits_for() == "the next step") TakeStep();
      return !save.ok() || save->state() == v1::SAVE_STATE_ENDED;
    })) << "it does not end";
    EXPECT_OK(save);
    return save.value_or(v1::Save());
  }
  void ExpectIsWhole(const v1::Save& save) {
    SCOPED_TRACE(save.spec().path());
    EXPECT_EQ(save.code(), 0) << save.message();
    EXPECT_EQ(save.fate(), v1::SAVE_FATE_KEPT);
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(save.spec().path()));
    EXPECT_THAT(verified.damages, IsEmpty());
    EXPECT_EQ(verified.manifest.step, save.step()) << "another one was made after it";
  }

  std::optional<TrainerTeam> team_;
  std::unique_ptr<cli::SavesClient> client_, undisturbed_;
};

TEST_P(LossySaveTest, RequestedSavesAreMadeOnceOrNeverAndTheRequesterHearsWhich) {
  constexpr int kPairs = 8;
  ASSERT_NO_FATAL_FAILURE(StartJob());
  std::filesystem::create_directory(folder_ + "/saves");
  std::vector<v1::Save> ended;
  for (int i = 0; i < kPairs; ++i) {
    const v1::Save wanted = Ask(2 * i);
    ended.push_back(Await(wanted.number()));
    EXPECT_EQ(ended.back().code(), 0) << ended.back().message();
    const v1::Save unwanted = Ask(2 * i + 1);
    const auto cancelled =
        Retried<v1::Save>([&] { return client_->Cancel("toy", unwanted.number()); });
    ASSERT_OK(cancelled);
    EXPECT_EQ(cancelled->state(), v1::SAVE_STATE_ENDED) << "no step was taken since";
    EXPECT_EQ(cancelled->code(), static_cast<int>(absl::StatusCode::kCancelled));
    ended.push_back(*cancelled);
  }
  for (int i = 0; i < 3; ++i) TakeStep();  // In which nothing is to be made again.
  ASSERT_OK_AND_ASSIGN(const v1::ListCheckpointsResponse all, undisturbed_->List("toy"));
  ASSERT_EQ(all.saves_size(), 2 * kPairs) << "a request was recorded twice, or not at all";
  for (const v1::Save& told : ended) {
    ASSERT_OK_AND_ASSIGN(const v1::Save save, undisturbed_->Get("toy", told.number()));
    EXPECT_EQ(save.SerializeAsString(), told.SerializeAsString())
        << save.ShortDebugString() << " is not " << told.ShortDebugString();
    if (save.code() == 0) ExpectIsWhole(save);
  }
  int num_there = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder_ + "/saves")) {
    ++num_there;
    EXPECT_TRUE(std::any_of(ended.begin(), ended.end(),
                            [&](const v1::Save& save) {
                              return save.code() == 0 && save.spec().path() == entry.path();
                            }))
        << entry.path() << " is none of those that were made";
  }
  EXPECT_EQ(num_there, kPairs);
  const std::string fates = EndLayer();
  for (const char* method : {"RequestSave", "GetSave", "CancelSave"})
    ExpectEveryFate(fates, absl::StrCat("tessera.v1.Checkpoints/", method));
}

INSTANTIATE_TEST_SUITE_P(Seeds, LossyTest, testing::Range(1, 4));
INSTANTIATE_TEST_SUITE_P(Seeds, LossySaveTest, testing::Range(1, 4));

}  // namespace
}  // namespace tessera
