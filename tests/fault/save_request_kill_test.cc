// Executors, trainers and the coordinator are killed while a checkpoint that was asked for from
// outside is waited for or made. The request says what happened, and is made of a later step; the
// previous checkpoint stays until then.
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "client/cli/cli.h"
#include "client/cli/jobs_client.h"
#include "client/cli/saves_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/local_cluster.h"
#include "tests/demo/child_process.h"
#include "tests/fault/process_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using cli::SavesClient;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::Eventually;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;
constexpr int64_t kMostSteps = 20000;

absl::StatusOr<std::unique_ptr<SavesClient>> ClientOf(const std::string& coordinator) {
  cli::Endpoint endpoint;
  endpoint.address = coordinator;
  return SavesClient::Create(endpoint);
}

absl::StatusOr<v1::Save> Ask(SavesClient* client, const std::string& id, const std::string& path,
                             const v1::SaveSpec& spec = {}) {
  v1::RequestSaveRequest request;
  request.set_request_id(id);
  request.set_job_id("toy");
  *request.mutable_spec() = spec;
  request.mutable_spec()->set_path(path);
  return client->Request(request);
}

class SaveRequestKillTest : public testing::Test {
 protected:
  void Start(const std::string& fault) {
    LocalCluster::Options options;
    options.num_devices = kWorldSize;
    options.executor_binary = "worker/tessera-executor";
    options.executor_flags = {absl::StrCat("--fault-points=", fault)};
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
    ASSERT_OK_AND_ASSIGN(client_, ClientOf(cluster_->coordinator_address()));
    path_ = absl::StrCat(testing::TempDir(), "/wanted-killed-", getpid());
    std::filesystem::remove_all(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }
  v1::Save TrainUntilEnded(TrainerTeam* team, int64_t number) {
    const int64_t first = team->session(0)->next_step();
    for (int64_t step = first; step < first + kMostSteps; ++step) {
      const auto save = client_->Get("toy", number);
      EXPECT_OK(save);
      if (!save.ok() || save->state() == v1::SAVE_STATE_ENDED) return save.value_or(v1::Save());
      const absl::Status trained = team->TrainTo(step);
      EXPECT_OK(trained);
      if (!trained.ok()) return v1::Save();
    }
    ADD_FAILURE() << "it never ends";
    return v1::Save();
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<SavesClient> client_;
  std::string path_;
};

std::string NameOfFault(const testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  name.erase(std::remove_if(name.begin(), name.end(), [](char c) { return !isalnum(c); }),
             name.end());
  return name;
}

class SaveRequestRetryTest : public SaveRequestKillTest,
                             public testing::WithParamInterface<const char*> {};

// Of the trainers' own save rank 0's executor passes the place; of the request's first try it dies
// there, and the next executor passes it again.
TEST_P(SaveRequestRetryTest, DeathOfAnExecutorIsATryAndALaterStepIsSaved) {
  ASSERT_NO_FATAL_FAILURE(Start(GetParam()));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  ASSERT_OK(team.TrainTo(1));
  ASSERT_OK(team.RunAll([&](Session* session) { return SaveCheckpoint(session, path_); }));
  ASSERT_OK_AND_ASSIGN(const v1::Save asked, Ask(client_.get(), "r", path_));
  const v1::Save save = TrainUntilEnded(&team, asked.number());
  EXPECT_EQ(save.code(), 0) << save.message();
  EXPECT_EQ(save.tries(), 1);
  EXPECT_THAT(save.last_failure(), HasSubstr("killed by signal 9"));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path_));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, save.step());
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(path_)));
  ASSERT_OK_AND_ASSIGN(const v1::ListCheckpointsResponse saves, client_->List("toy"));
  ASSERT_EQ(saves.saves_size(), 2);
  EXPECT_EQ(saves.saves(1).fate(), v1::SAVE_FATE_REPLACED);
}

INSTANTIATE_TEST_SUITE_P(Points, SaveRequestRetryTest,
                         testing::Values("save.created=kill@2", "save.created=stop@2",
                                         "checkpoint.rename=kill@2", "checkpoint.published=kill@2",
                                         "checkpoint.published=stop@2"),
                         NameOfFault);

struct OwnCase {
  std::string name, point;  // Where rank 0's executor dies: it has the name by then.
  bool in_parts = false, in_foreground = false;
  int world_size = kWorldSize;
};

class SaveRequestOwnTest : public SaveRequestKillTest,
                           public testing::WithParamInterface<OwnCase> {};

// The try that was made whole is what was asked for, though nobody lived to say so; what another
// request finds there is not its own.
TEST_P(SaveRequestOwnTest, CheckpointOfATryThatDiedBehindItsNameIsTheRequestsOwnAndNotRefused) {
  ASSERT_NO_FATAL_FAILURE(Start(absl::StrCat(GetParam().point, "=kill@1")));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", GetParam().world_size)));
  v1::SaveSpec spec;
  spec.set_no_overwrite(true);
  spec.set_in_parts(GetParam().in_parts);
  spec.set_in_foreground(GetParam().in_foreground);
  ASSERT_OK_AND_ASSIGN(const v1::Save asked, Ask(client_.get(), "r", path_, spec));
  const v1::Save save = TrainUntilEnded(&team, asked.number());
  EXPECT_EQ(save.code(), 0) << save.message();
  EXPECT_EQ(save.tries(), 1);
  EXPECT_THAT(save.last_failure(), HasSubstr("killed by signal 9"));
  EXPECT_EQ(save.fate(), v1::SAVE_FATE_KEPT);
  const std::string made = GetParam().in_parts ? path_ + "/rank-00000" : path_;
  ASSERT_OK_AND_ASSIGN(const Manifest manifest,
                       GetParam().in_parts ? ReadPartManifest(made) : ReadManifest(made));
  EXPECT_EQ(manifest.step, save.step());
  EXPECT_GT(save.size_bytes(), 0);
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(made)));
  if (!GetParam().in_parts) {
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path_));
    EXPECT_THAT(verified.damages, IsEmpty());
  }
  ASSERT_OK_AND_ASSIGN(const v1::Save again, Ask(client_.get(), "s", path_, spec));
  EXPECT_EQ(TrainUntilEnded(&team, again.number()).code(),
            static_cast<int>(absl::StatusCode::kAlreadyExists));
}

INSTANTIATE_TEST_SUITE_P(
    Points, SaveRequestOwnTest,
    testing::Values(OwnCase{"Renamed", "checkpoint.renamed"},
                    OwnCase{"Published", "checkpoint.published"},
                    OwnCase{"InForeground", "checkpoint.published", false, true},
                    OwnCase{"InParts", "checkpoint.published", true, false, 1}),
    [](const testing::TestParamInfo<OwnCase>& info) { return info.param.name; });

// Where the executors die that copy the version, or write it.
class SaveRequestThirdDeathTest : public SaveRequestKillTest,
                                  public testing::WithParamInterface<const char*> {};

TEST_P(SaveRequestThirdDeathTest, EndsTheRequestWithItsCauseAndTheCheckpointBeforeStays) {
  ASSERT_NO_FATAL_FAILURE(Start(GetParam()));
  // Another job's, whose executors have another fault.
  {
    LocalCluster::Options options;
    options.num_devices = 1;
    ASSERT_OK_AND_ASSIGN(const auto other, LocalCluster::Start(options));
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(ToyOptions(*other, "toy", 1)));
    ASSERT_OK(team.TrainTo(2));
    ASSERT_OK(SaveCheckpoint(team.session(0), path_));
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::Open(ToyOptions(*cluster_, "toy", kWorldSize)));
  ASSERT_OK_AND_ASSIGN(const v1::Save asked, Ask(client_.get(), "r", path_));
  const v1::Save save = TrainUntilEnded(&team, asked.number());
  EXPECT_EQ(save.code(), static_cast<int>(absl::StatusCode::kAborted));
  EXPECT_EQ(save.tries(), 3);
  EXPECT_THAT(save.message(), HasSubstr("killed by signal 9"));
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path_));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, 2);
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(path_)));
  const int64_t step = team.session(0)->next_step();
  EXPECT_OK(team.TrainTo(step));
}

INSTANTIATE_TEST_SUITE_P(Points, SaveRequestThirdDeathTest,
                         testing::Values("save.written=kill@1", "save.take=kill@1",
                                         "save.take=stop@1"),
                         NameOfFault);

// Executors are threads of the test here, which holds them in the middle of what they do.
TEST(SaveRequestTrainerTest, TrainerKilledWhileItIsWrittenIsATryAndALaterStepIsSaved) {
  constexpr int64_t kHeldStep = 11;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start({.num_devices = kWorldSize}));
  cli::Endpoint endpoint;
  endpoint.address = cluster->coordinator_address();
  ASSERT_OK_AND_ASSIGN(const auto client, SavesClient::Create(endpoint));
  ASSERT_OK_AND_ASSIGN(const auto jobs, cli::JobsClient::Create(endpoint));
  std::string folder = testing::TempDir() + "/wanted-trainer-XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::vector<std::unique_ptr<demo::ChildProcess>> trainers(kWorldSize);
  const auto start = [&](int rank, const std::vector<std::string>& flags) {
    std::vector<std::string> args = {"tests/fault/toy_trainer",
                                     "--coordinator=" + cluster->coordinator_address(),
                                     "--worker=" + cluster->worker_address(),
                                     absl::StrCat("--rank=", rank),
                                     absl::StrCat("--world-size=", kWorldSize),
                                     "--steps=20",
                                     "--pause-at=1",
                                     "--resume-file=" + folder + "/resume",
                                     "--save=" + folder + "/model.safetensors"};
    args.insert(args.end(), flags.begin(), flags.end());
    auto started = demo::ChildProcess::Start(args, folder + "/trainer.log");
    ASSERT_OK(started);
    trainers[rank] = *std::move(started);
  };
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.created", hold);
  hold.at_hit = kWorldSize * (kHeldStep - 1) + 1;
  ArmFaultPoint("step.before-vote", hold);
  for (int rank = 0; rank < kWorldSize; ++rank) ASSERT_NO_FATAL_FAILURE(start(rank, {}));
  absl::StatusOr<v1::Save> asked;
  ASSERT_TRUE(Eventually([&] {  // The job is there once the first trainer has made it.
    asked = Ask(client.get(), "r", folder + "/checkpoint");
    return asked.ok();
  })) << asked.status();
  std::ofstream(folder + "/resume").flush();
  const auto becomes = [&](const std::function<bool(const v1::Save&)>& is) {
    return Eventually([&] {
      const auto save = client->Get("toy", asked->number());
      return save.ok() && is(*save);
    });
  };
  EXPECT_TRUE(becomes([](const v1::Save& save) {
    return save.state() == v1::SAVE_STATE_SAVING && save.step() == 1;
  }));
  // It is past the operation that began the save, which its executor would finish without it.
  EXPECT_TRUE(Eventually([&] {
    const auto job = jobs->GetJob("toy");
    return job.ok() && job->ranks().count(1) > 0 && job->ranks().at(1).step() == kHeldStep;
  }));
  trainers[1]->Kill(SIGKILL);
  trainers[1]->Wait();
  EXPECT_TRUE(becomes([](const v1::Save& save) { return save.tries() == 1; }));
  EXPECT_THAT(client->Get("toy", asked->number())->last_failure(), HasSubstr("trainer"));
  EXPECT_FALSE(std::filesystem::exists(folder + "/checkpoint"));
  DisarmAllFaultPoints();
  ASSERT_NO_FATAL_FAILURE(start(1, {"--replace"}));
  for (const auto& trainer : trainers) EXPECT_EQ(trainer->Wait(), 0);
  EXPECT_TRUE(becomes([](const v1::Save& save) { return save.state() == v1::SAVE_STATE_ENDED; }));
  ASSERT_OK_AND_ASSIGN(const v1::Save save, client->Get("toy", asked->number()));
  EXPECT_EQ(save.code(), 0) << save.message();
  ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(folder + "/checkpoint"));
  EXPECT_THAT(verified.damages, IsEmpty());
  EXPECT_EQ(verified.manifest.step, save.step());
  EXPECT_GT(save.step(), 1);
  std::filesystem::remove_all(folder);
}

class SaveRequestProcessTest : public ProcessCluster {
 protected:
  void Connect() { ASSERT_OK_AND_ASSIGN(client_, ClientOf(coordinator_address())); }
  void KillCoordinator() {
    coordinator_->Kill(SIGKILL);
    coordinator_->Wait();
    StartCoordinator();
    Connect();
  }
  std::string path() const { return folder_ + "/checkpoint"; }
  // Once the trainers have ended: the save is there, and what it says is on the disk.
  void ExpectSaved(int64_t number) {
    v1::Save save;
    ASSERT_TRUE(Eventually([&] {
      const auto got = client_->Get("toy", number);
      if (got.ok()) save = *got;
      return got.ok() && save.state() == v1::SAVE_STATE_ENDED;
    })) << save.DebugString();
    EXPECT_EQ(save.code(), 0) << save.message();
    ASSERT_OK_AND_ASSIGN(const Verification verified, VerifyCheckpoint(path()));
    EXPECT_THAT(verified.damages, IsEmpty());
    EXPECT_EQ(verified.manifest.step, save.step());
    EXPECT_EQ(save.step(), pause_at_);
  }
  std::unique_ptr<SavesClient> client_;
};

TEST_F(SaveRequestProcessTest, RequestAndWhatIsKnownSurviveTheDeathOfTheCoordinator) {
  ASSERT_FALSE(UndisturbedModel().empty());
  // The first step's order is requested from the coordinator, so its releases follow the save
  // request.
  pause_at_ = 1;
  StartAll();
  for (int rank = 0; rank < world_size_; ++rank) AwaitStep(rank, pause_at_);
  Connect();
  ASSERT_OK_AND_ASSIGN(const v1::Save asked, Ask(client_.get(), "r", path()));
  KillCoordinator();
  // The worker is connected again, and its line has the request.
  ASSERT_TRUE(Eventually([&] {
    const auto again = Ask(client_.get(), "r", path());
    return again.ok() && again->number() == asked.number() && again->waits_for() == "the next step";
  }));
  Resume();
  EXPECT_EQ(Finish(), UndisturbedModel()) << "asking changed the training";
  ExpectSaved(asked.number());
  KillCoordinator();
  ExpectSaved(asked.number());
}

TEST_F(SaveRequestProcessTest, RequestWaitsForTheTrainerThatReplacesAKilledOne) {
  ASSERT_FALSE(UndisturbedModel().empty());
  pause_at_ = kSteps / 2;
  StartAll();
  AwaitStep(1, pause_at_);
  Connect();
  ASSERT_OK_AND_ASSIGN(const v1::Save asked, Ask(client_.get(), "r", path()));
  trainers_[1]->Kill(SIGKILL);
  trainers_[1]->Wait();
  Resume();
  StartTrainer(1, /*replace=*/true);
  EXPECT_EQ(Finish(), UndisturbedModel());
  ExpectSaved(asked.number());
}

}  // namespace
}  // namespace tessera
