// Executors in their trainers' processes, on ranks of the host: the same bits as with the worker's,
// whichever ranks have them, and nothing hangs, whichever process ends.
#include <unistd.h>

#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/executor/host_executor.h"
#include "client/rpc/job_rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/executor/executor_machine.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing_support::DescriptorsOf;
using testing_support::Eventually;
using testing_support::ExecutorsOf;
using testing_support::ReadAll;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;
using testing_support::TrainToy;

constexpr int64_t kSteps = 6;

// The worker's own executors: threads of this process, or processes.
enum class Others { kThreads, kProcesses };

class HostedExecutorTest : public testing::TestWithParam<Others> {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 8;
    if (GetParam() == Others::kProcesses) options.executor_binary = "worker/tessera-executor";
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  void TearDown() override { DisarmAllFaultPoints(); }

  // Of a rank; bit `rank` of `hosts` says whether its trainer hosts its executor.
  SessionOptions OptionsOf(int rank, int world_size, unsigned hosts, const std::string& job) {
    SessionOptions options = ToyOptions(*cluster_, job, world_size);
    options.rank = rank;
    options.config.max_gradient_norm = 0.5;
    options.wait_if_attached = true;  // The worker may not have seen the last one leave yet.
    if ((hosts >> rank & 1) != 0) options.host_executor = RunExecutorHere(ExecutorMachine());
    return options;
  }
  absl::StatusOr<TrainerTeam> Open(int world_size, unsigned hosts, const std::string& job) {
    std::vector<SessionOptions> by_rank;
    for (int rank = 0; rank < world_size; ++rank)
      by_rank.push_back(OptionsOf(rank, world_size, hosts, job));
    return TrainerTeam::OpenEach(by_rank);
  }
  static std::vector<float> Values(TrainerTeam* team) {
    std::vector<float> values;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      ASSIGN_OR_RETURN(std::vector<float> all, ReadAll(session));
      if (session->rank() == 0) values = std::move(all);
      return absl::OkStatus();
    }));
    EXPECT_FALSE(values.empty());
    return values;
  }
  std::vector<float> Undisturbed(int world_size, int64_t steps) {
    auto team = Open(world_size, /*hosts=*/0, absl::StrCat("undisturbed", world_size));
    EXPECT_OK(team);
    EXPECT_OK(team->TrainTo(steps));
    const std::vector<float> values = Values(&*team);
    Delete(absl::StrCat("undisturbed", world_size));
    return values;
  }
  void Delete(const std::string& job) {
    v1::DeleteJobRequest request;
    request.set_request_id(NewRequestId());
    request.set_job_id(job);
    EXPECT_OK(
        DeleteJob({cluster_->coordinator_address()}, request, absl::Now() + absl::Seconds(20)));
  }
  v1::Job JobView(const std::string& job) {
    auto view = GetJob({cluster_->coordinator_address()}, job, absl::Now() + absl::Seconds(20));
    EXPECT_OK(view);
    return view.ok() ? *view : v1::Job();
  }
  int ExecutorPid(const std::string& job, int rank) {
    const v1::Job view = JobView(job);
    const auto status = view.ranks().find(rank);
    return status == view.ranks().end() ? 0 : status->second.executor_pid();
  }

  std::unique_ptr<LocalCluster> cluster_;
};

INSTANTIATE_TEST_SUITE_P(Others, HostedExecutorTest,
                         testing::Values(Others::kThreads, Others::kProcesses),
                         [](const testing::TestParamInfo<Others>& info) {
                           return info.param == Others::kThreads ? "Threads" : "Processes";
                         });

TEST_P(HostedExecutorTest, TrainingHasTheBitsOfTheWorkersExecutorsWhicheverRanksHost) {
  for (int world_size = 1; world_size <= 4; ++world_size) {
    const std::vector<float> expected = Undisturbed(world_size, kSteps);
    for (const unsigned hosts : {~0u, 1u, 2u, 5u}) {
      SCOPED_TRACE(absl::StrCat(world_size, " ranks, hosts ", hosts));
      const std::string job = absl::StrCat("job", world_size, "-", hosts);
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(world_size, hosts, job));
      for (int rank = 0; rank < world_size; ++rank)
        EXPECT_EQ(team.session(rank)->hosts_executor(), (hosts >> rank & 1) != 0) << rank;
      ASSERT_OK(team.TrainTo(kSteps));
      EXPECT_EQ(Values(&team), expected);
      for (int rank = 0; rank < world_size; ++rank)
        EXPECT_EQ(team.session(rank)->hosts_executor(), (hosts >> rank & 1) != 0) << rank;
      Delete(job);
    }
  }
}

TEST_P(HostedExecutorTest, TrainersComeAndGoInTheMiddleOfAJobAndNoBitDiffers) {
  constexpr int kWorldSize = 3;
  int64_t step = 0;
  for (const unsigned hosts : {0u, 7u, 0u, 2u, 5u, 7u, 7u}) {
    SCOPED_TRACE(absl::StrCat("step ", step, ", hosts ", hosts));
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, hosts, "toy"));
    EXPECT_EQ(team.session(0)->next_step(), step + 1);
    step += 3;
    ASSERT_OK(team.TrainTo(step));
  }
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 0, "toy"));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, step));
}

TEST_P(HostedExecutorTest, DetachingDisturbsNobodyAndTheNextTrainerGoesOn) {
  constexpr int kWorldSize = 3;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 7, "toy"));
  ASSERT_OK(team.TrainTo(2));
  const std::vector<float> after_two = Values(&team);
  const int64_t epoch = JobView("toy").epoch();
  team.Close(1);
  team.Close(2);
  ASSERT_OK_AND_ASSIGN(const std::vector<float> read, ReadAll(team.session(0)));
  EXPECT_EQ(read, after_two);
  EXPECT_EQ(JobView("toy").epoch(), epoch) << "the epoch goes on";
  ASSERT_OK(team.Reopen(OptionsOf(1, kWorldSize, 0, "toy")));
  ASSERT_OK(team.Reopen(OptionsOf(2, kWorldSize, 4, "toy")));
  EXPECT_GT(JobView("toy").epoch(), epoch);
  ASSERT_OK(team.TrainTo(kSteps));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, kSteps));
}

// Each of them ends the epoch when it attaches.
TEST_P(HostedExecutorTest, TrainersThatAttachLaterUndoNoStepOfThoseBeforeThem) {
  constexpr int kWorldSize = 3;
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 7, "toy"));
    ASSERT_OK(team.TrainTo(2));
  }
  std::vector<std::unique_ptr<Session>> sessions(kWorldSize);
  std::vector<absl::Status> stepped(kWorldSize);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    ASSERT_OK_AND_ASSIGN(sessions[rank], Session::Open(OptionsOf(rank, kWorldSize, 7, "toy")));
    // Not by RunStep, which would do it again.
    threads.emplace_back([&, rank] { stepped[rank] = ToyStep(sessions[rank].get(), 3); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_OK(stepped[rank]) << rank;
  sessions.clear();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 0, "toy"));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, 3));
}

TEST_P(HostedExecutorTest, TrainerWhosePeersDoNotComeSaysWhichWhenItsTimeIsOver) {
  SessionOptions options = OptionsOf(0, /*world_size=*/2, 3, "toy");
  options.operation_timeout = absl::Seconds(1);
  ASSERT_OK_AND_ASSIGN(const auto session, Session::Open(options));
  EXPECT_THAT(session->Unshard(0), StatusIs(absl::StatusCode::kDeadlineExceeded,
                                            AllOf(HasSubstr("trainers of all ranks"),
                                                  HasSubstr("rank 1 has no trainer"))));
}

TEST_P(HostedExecutorTest, FirstOperationOfAStepIsDoneInTheNextEpochAndALaterOneIsUndone) {
  constexpr int kWorldSize = 2;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 3, "toy"));
  ASSERT_OK(team.TrainTo(2));
  ASSERT_OK(team.session(0)->Unshard(0));
  team.Close(1);
  ASSERT_OK(team.Reopen(OptionsOf(1, kWorldSize, 3, "toy")));
  const absl::Status later = team.session(0)->Unshard(1);
  EXPECT_TRUE(absl::IsAborted(later)) << later;
  ASSERT_OK(team.session(0)->Recover());
  team.Close(1);
  ASSERT_OK(team.Reopen(OptionsOf(1, kWorldSize, 3, "toy")));
  EXPECT_OK(team.RunAll([](Session* session) { return session->Unshard(0); }));
  EXPECT_OK(team.RunAll([](Session* session) { return session->Reshard(0); }));
  ASSERT_OK(team.TrainTo(kSteps));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, kSteps));
}

TEST_P(HostedExecutorTest, RanksThatDifferAfterALossAreToldToBeginAgainAndDoNotRecover) {
  constexpr int kWorldSize = 2;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 3, "toy"));
  ASSERT_OK(team.TrainTo(2));
  team.Close(1);
  ASSERT_OK(team.Reopen(OptionsOf(1, kWorldSize, 3, "toy")));
  const std::vector<absl::Status> statuses = team.Run([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(session->Unshard(session->rank()));
    RETURN_IF_ERROR(session->Reshard(session->rank()));
    return session->Step().status();
  });
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const auto differs =
        StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("execution orders differ"));
    EXPECT_THAT(statuses[rank], differs) << rank;
    EXPECT_TRUE(team.session(rank)->restart_required()) << rank;
    EXPECT_THAT(team.session(rank)->Recover(), differs) << rank;
  }
  for (int rank = 0; rank < kWorldSize; ++rank) team.Close(rank);
  ASSERT_OK_AND_ASSIGN(team, Open(kWorldSize, 3, "toy"));
  for (int rank = 0; rank < kWorldSize; ++rank)
    EXPECT_FALSE(team.session(rank)->restart_required()) << rank;
  ASSERT_OK(team.TrainTo(kSteps));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, kSteps));
}

// Reductions of the step are under way, which nobody will complete.
TEST_P(HostedExecutorTest, DetachingInTheMiddleOfAStepUndoesItAndTheNextTrainerGoesOn) {
  constexpr int kWorldSize = 2;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 3, "toy"));
  ASSERT_OK(team.TrainTo(2));
  {
    Session* session = team.session(1);
    ASSERT_OK(session->Unshard(0));
    ASSERT_OK(session->Reshard(0));
    const std::vector<float> ones(session->layout().units[0].flat.parameters()[0].numel, 1.0f);
    ASSERT_OK(session->AddGradient(0, 0, ones));
    ASSERT_OK(session->Reduce(0));
  }
  team.Close(1);
  ASSERT_OK(team.Reopen(OptionsOf(1, kWorldSize, 2, "toy")));
  ASSERT_OK(team.TrainTo(kSteps));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, kSteps));
}

TEST_P(HostedExecutorTest, ExecutorThatIsKilledIsReplacedAndItsTrainerGoesOn) {
  constexpr int kWorldSize = 2;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 3, "toy"));
  ASSERT_OK(team.TrainTo(2));
  EXPECT_TRUE(Eventually([&] { return ExecutorPid("toy", 1) == getpid(); }));
  cluster_->KillExecutorForTest("toy", 1);
  EXPECT_TRUE(Eventually([&] { return !team.session(1)->hosts_executor(); }));
  EXPECT_TRUE(team.session(0)->hosts_executor());
  ASSERT_OK(team.TrainTo(kSteps));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, kSteps));
  if (GetParam() == Others::kProcesses) {
    const std::map<std::string, int> executors = ExecutorsOf(getpid());
    ASSERT_EQ(executors.count("toy/1"), 1);
    EXPECT_TRUE(Eventually([&] { return ExecutorPid("toy", 1) == executors.at("toy/1"); }));
    EXPECT_EQ(executors.count("toy/0"), 0) << "rank 0 has its executor in this process";
  }
}

TEST_P(HostedExecutorTest, ErrorOfTheExecutorIsToldToItsTrainerByNameAndTheRankIsThereForOthers) {
  constexpr int kWorldSize = 2;
  SessionOptions broken = OptionsOf(0, kWorldSize, 0, "toy");
  ExecutorMachine machine;
  machine.make_device = [](const DeviceName&) -> absl::StatusOr<std::unique_ptr<RankDevice>> {
    return absl::UnavailableError("this processor is on fire");
  };
  broken.host_executor = RunExecutorHere(machine);
  EXPECT_THAT(Session::Open(broken),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("the executor of rank 0 in this process"),
                             HasSubstr("this processor is on fire"))));
  broken.host_executor = [](UniqueFd, const ExecutorIsStuck&) {
    return absl::OkStatus();
  };  // Ends at once.
  ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                       TrainerTeam::OpenEach({broken, OptionsOf(1, kWorldSize, 0, "toy")}));
  EXPECT_FALSE(team.session(0)->hosts_executor());
  ASSERT_OK(team.TrainTo(kSteps));
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, kSteps));
}

TEST_P(HostedExecutorTest, ErrorOfAnOperationEndsTheEpochOnAllRanksWithItsCause) {
  constexpr int kWorldSize = 2;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 3, "toy"));
  ASSERT_OK(team.TrainTo(2));
  // A rank that has done nothing of the step would wait for the others in the next epoch.
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(session->Unshard(0));
    return session->Reshard(0);
  }));
  Fault fault;
  fault.at_hit = 3;
  fault.status = absl::InternalError("a cosmic ray");
  ArmFaultPoint("engine.operation", fault);
  for (const absl::Status& status :
       team.Run([](Session* session) { return ToyStep(session, session->next_step()); })) {
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr("a cosmic ray"));
  }
  ASSERT_OK(team.RunAll([](Session* session) { return session->Recover(); }));
  ASSERT_OK(team.TrainTo(kSteps));
  EXPECT_TRUE(team.session(0)->hosts_executor() && team.session(1)->hosts_executor());
  EXPECT_EQ(Values(&team), Undisturbed(kWorldSize, kSteps));
}

TEST_P(HostedExecutorTest, AttachingAndDetachingLeavesNothingBehind) {
  const SessionOptions options = OptionsOf(0, 1, 1, "toy");
  const auto cycle = [&] {
    ASSERT_OK_AND_ASSIGN(const auto session, Session::Open(options));
    ASSERT_TRUE(session->hosts_executor());
    ASSERT_OK(TrainToy(session.get(), session->next_step()));
  };
  // Of memory and sockets.
  const auto held = [] {
    int count = 0;
    for (const auto& [fd, name] : DescriptorsOf(getpid()))
      count += absl::StartsWith(name, "/memfd:") || absl::StartsWith(name, "socket:") ? 1 : 0;
    return count;
  };
  for (int i = 0; i < 3 && !HasFailure(); ++i) cycle();
  const int before = held();
  for (int i = 0; i < 60 && !HasFailure(); ++i) cycle();
  int after = 0;
  EXPECT_TRUE(Eventually([&] { return (after = held()) <= before + 4; }))
      << before << " before, " << after << " after";
}

TEST_P(HostedExecutorTest, WorkerThatStopsEndsTheExecutorsAndTheTrainersAreTold) {
  constexpr int kWorldSize = 2;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(kWorldSize, 3, "toy"));
  ASSERT_OK(team.TrainTo(2));
  cluster_.reset();
  for (const absl::Status& status :
       team.Run([](Session* session) { return TrainToy(session, kSteps); })) {
    EXPECT_THAT(status, AnyOf(StatusIs(absl::StatusCode::kUnavailable, HasSubstr("worker")),
                              StatusIs(absl::StatusCode::kCancelled, HasSubstr("job 'toy'"))));
  }
  for (int rank = 0; rank < kWorldSize; ++rank) EXPECT_FALSE(team.session(rank)->hosts_executor());
}

}  // namespace
}  // namespace tessera
