// Jobs on workers of GPUs, which are fakes here, whose drivers pass no memory between processes:
// what they compute is what workers without a GPU do, whichever trainers come, go or are refused.
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "job/job_codec.h"
#include "tests/integration/gpu_in_process_fixture.h"
#include "tests/testing/fake_nccl.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "worker/service/worker_server.h"

namespace tessera {
namespace {

using absl::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::Eventually;
using testing_support::FakeGpuMemory;
using testing_support::FakeNccl;
using testing_support::LiveReading;
using testing_support::ReadLive;

TEST_F(GpuInProcessTest, TrainsToTheBitsOfWorkersWithoutAGpu) {
  struct Case {
    Strategy strategy;
    DType dtype = DType::kFp32;
    bool in_backward = false, cpu_offload = false;
  };
  for (const Case& test : {Case{Strategy::kFullShard}, Case{Strategy::kFullShard, DType::kBf16},
                           Case{Strategy::kFullShard, DType::kFp32, /*in_backward=*/true},
                           Case{Strategy::kFullShard, DType::kFp32, false, /*cpu_offload=*/true},
                           Case{Strategy::kShardGradOp}, Case{Strategy::kNoShard, DType::kBf16}}) {
    SessionOptions job = Job();
    SCOPED_TRACE(job.job_id);
    job.config.strategy = test.strategy;
    job.config.compute_dtype = job.config.reduce_dtype = test.dtype;
    job.config.optimizer_in_backward = test.in_backward;
    if (test.in_backward) job.config.max_gradient_norm = 0;
    job.config.cpu_offload = test.cpu_offload;
    const JobState expected = OnTheProcessor(job, 5);
    {
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_gpu_, job));
      EXPECT_TRUE(team.session(0)->hosts_executor() && team.session(1)->hosts_executor());
      EXPECT_EQ(DeviceOf(team.session(1)), gpu_.get());
      ASSERT_OK(Train(&team, 5));
      EXPECT_TRUE(StateOf(&team) == expected);
      EXPECT_TRUE(team.session(0)->hosts_executor() && team.session(1)->hosts_executor());
    }
    Delete(*on_gpu_, job.job_id);
    EXPECT_EQ(FakeGpu()->Held(), held_);
  }
}

TEST_F(GpuInProcessTest, TrainersComeAndGoAndNothingIsLostWithTheirMemory) {
  for (const bool in_backward : {false, true}) {
    SessionOptions job = Job();
    SCOPED_TRACE(job.job_id);
    job.config.optimizer_in_backward = in_backward;
    if (in_backward) job.config.max_gradient_norm = 0;
    JobState state;
    for (int64_t done = 0; done < 9; done += 3) {
      EXPECT_EQ(FakeGpu()->Held(), held_) << "it all went with the trainers before";
      ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_gpu_, job));
      EXPECT_EQ(team.session(0)->next_step(), done + 1);
      if (done > 0) {
        EXPECT_TRUE(StateOf(&team) == state) << "before any step";
      }
      ASSERT_OK(Train(&team, done + 2));
      team.Close(1);  // And one alone.
      std::thread other([&] { EXPECT_OK(TrainOne(team.session(0), done + 3)); });
      EXPECT_OK(team.Reopen(On(*on_gpu_, job)[1]));
      EXPECT_OK(TrainOne(team.session(1), done + 3));
      other.join();
      state = StateOf(&team);
    }
    EXPECT_TRUE(state == OnTheProcessor(job, 9));
    Delete(*on_gpu_, job.job_id);
  }
}

// On workers without a GPU too, where the worker's own executor is next.
TEST_F(GpuInProcessTest, DetachingDisturbsNoRankOfAnotherWorker) {
  for (LocalCluster* const cluster : {on_gpu_.get(), on_host_.get()}) {
    const SessionOptions job = Job();
    SCOPED_TRACE(job.job_id);
    std::vector<SessionOptions> by_rank = On(*cluster, job);
    for (SessionOptions& options : by_rank)
      options.host_executor = RunExecutorHere({MakeFakeGpuDevice});
    const auto view = [&] {
      auto got =
          GetJob({cluster->coordinator_address()}, job.job_id, absl::Now() + absl::Seconds(20));
      EXPECT_OK(got);
      return got.ok() ? *got : v1::Job();
    };
    const auto is_attached = [&](bool attached) {
      const v1::Job now = view();
      const auto rank = now.ranks().find(1);
      return rank != now.ranks().end() && rank->second.attached() == attached;
    };
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::OpenEach(by_rank));
    ASSERT_OK(Train(&team, 2));
    EXPECT_TRUE(Eventually([&] { return is_attached(true); }));
    const int64_t epoch = view().epoch();
    team.Close(1);
    EXPECT_TRUE(Eventually([&] { return is_attached(false); }));
    EXPECT_OK(team.session(0)->DropGradients());
    const LiveReading read =
        ReadLive(cluster->coordinator_address(), job.job_id, Path("now.safetensors"));
    EXPECT_TRUE(read.ok) << read.error;
    EXPECT_EQ(read.step, 2);
    EXPECT_EQ(view().epoch(), epoch) << "it goes on";
    std::thread other([&] { EXPECT_OK(TrainOne(team.session(0), 4)); });
    EXPECT_OK(team.Reopen(by_rank[1]));
    EXPECT_OK(TrainOne(team.session(1), 4));
    other.join();
    EXPECT_GT(view().epoch(), epoch);
    const JobState state = StateOf(&team);
    team.Close(0);
    team.Close(1);
    Delete(*cluster, job.job_id);
    EXPECT_TRUE(state == OnTheProcessor(job, 4));
  }
}

// One job on workers of several kinds: in its process with whole parameters, with slots in memory
// that processes share, and on the host. Where one rank cannot move over NCCL, none does.
TEST_F(GpuInProcessTest, WorkersOfAllKindsTrainOneJob) {
  enum Kind { kInProcess, kShares, kProcessor };
  is_mixed_ = true;
  FakeNccl nccl;
  ExecutorMachine machine;
  machine.make_device = MakeFakeGpuDevice;
  machine.make_direct = [&](RankDevice* device) { return nccl.Make(device); };
  for (const std::vector<Kind>& kinds :
       {std::vector<Kind>{kInProcess, kShares}, {kShares, kProcessor, kInProcess}}) {
    LocalCluster::Options none;
    none.num_workers = 0;
    ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(none));
    LocalCluster::Options all;
    all.num_workers = static_cast<int>(kinds.size());
    ASSERT_OK_AND_ASSIGN(const auto on_host, LocalCluster::Start(all));
    std::string sockets = "/tmp/tessera-gpu-XXXXXX";  // Paths of sockets are short.
    ASSERT_NE(mkdtemp(sockets.data()), nullptr);
    std::vector<std::unique_ptr<WorkerServer>> workers;
    for (const Kind kind : kinds) {
      WorkerServer::Options worker;
      worker.worker_id = absl::StrCat("worker", workers.size());
      worker.coordinator_address = cluster->coordinator_address();
      worker.data_host = "127.0.0.1";
      worker.socket_dir = absl::StrCat(sockets, "/", workers.size());
      worker.machine = machine;
      if (kind != kProcessor)
        worker.device_memory = kind == kShares ? FakeGpuMemory() : FakeGpuMemoryInProcess();
      ASSERT_OK_AND_ASSIGN(auto started, WorkerServer::Start(worker));
      workers.push_back(std::move(started));
    }
    for (const DType dtype : {DType::kFp32, DType::kBf16}) {
      SessionOptions job = Job(static_cast<int>(kinds.size()));
      SCOPED_TRACE(job.job_id);
      job.config.compute_dtype = job.config.reduce_dtype = dtype;
      JobState expected;
      {
        ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_host, job));
        ASSERT_OK(Train(&team, 5));
        expected = StateOf(&team);
      }
      Delete(*on_host, job.job_id);
      job.coordinator_address = cluster->coordinator_address();
      std::vector<SessionOptions> by_rank(kinds.size(), job);
      for (size_t rank = 0; rank < kinds.size(); ++rank) {
        by_rank[rank].rank = static_cast<int>(rank);
        by_rank[rank].worker_address = workers[rank]->address();
        if (kinds[rank] == kInProcess) by_rank[rank].host_executor = RunExecutorHere(machine);
      }
      {
        ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::OpenEach(by_rank));
        for (size_t rank = 0; rank < kinds.size(); ++rank) {
          Session* const session = team.session(static_cast<int>(rank));
          EXPECT_EQ(session->hosts_executor(), kinds[rank] == kInProcess);
          EXPECT_EQ(DeviceGradients(session).available(), kinds[rank] != kProcessor);
        }
        ASSERT_OK(Train(&team, 5));
        EXPECT_TRUE(StateOf(&team) == expected);
      }
      Delete(*cluster, job.job_id);
    }
    workers.clear();
    std::filesystem::remove_all(sockets);
  }
  absl::MutexLock lock(&nccl.mu);
  EXPECT_FALSE(nccl.apis.empty()) << "those that share could";
  for (const auto& api : nccl.apis) EXPECT_EQ(api->num_aborts(), 0) << "no communicator was made";
}

TEST_F(GpuInProcessTest, TrainerThatDoesNotHostIsRefusedByNameAndHowToDoBetter) {
  const SessionOptions job = Job();
  std::vector<SessionOptions> by_rank = On(*on_gpu_, job);
  by_rank[1].host_executor = nullptr;
  EXPECT_THAT(Session::Open(by_rank[1]),
              StatusIs(StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr("rank 1 of job"), HasSubstr("worker 'local1'"),
                             HasSubstr("SessionOptions::host_executor"),
                             HasSubstr("the device's memory has no descriptors"))));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_gpu_, job));
  EXPECT_OK(Train(&team, 1));
}

TEST_F(GpuInProcessTest, JobWithTwoRanksIsNotPlacedOnAWorkerAndItSaysWhy) {
  LocalCluster::Options options;
  options.num_devices = 2;
  options.device_memory = FakeGpuMemoryInProcess();
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
  SessionOptions job = Job();
  const DialOptions coordinator = {cluster->coordinator_address()};
  v1::CreateJobRequest create;
  create.set_request_id(NewRequestId());
  create.set_job_id(job.job_id);
  *create.mutable_model() = EncodeModel(job.model);
  *create.mutable_config() = EncodeJobConfig(job.config);
  ASSERT_OK(CreateJob(coordinator, create, absl::Now() + absl::Seconds(20)));
  std::string reason;
  EXPECT_TRUE(Eventually([&] {
    const auto view = GetJob(coordinator, job.job_id, absl::Now() + absl::Seconds(20));
    reason = view.ok() ? view->state_reason() : view.status().ToString();
    // Before the worker has joined there is none at all.
    return absl::StrContains(reason, "holds 1 rank of a job");
  })) << reason;
  EXPECT_THAT(reason, AllOf(HasSubstr("needs 2 devices"),
                            HasSubstr("the device's memory has no descriptors")));
  Delete(*cluster, job.job_id);
  job.job_id += "-alone";
  job.config.world_size = 1;
  job.coordinator_address = cluster->coordinator_address();
  job.worker_address = cluster->worker_address();
  job.host_executor = RunExecutorHere({MakeFakeGpuDevice});
  ASSERT_OK_AND_ASSIGN(const auto session, Session::Open(job));
  EXPECT_OK(TrainOne(session.get(), 2));
}

TEST_F(GpuInProcessTest, SessionWhoseExecutorEndsSaysSoAndTheNextOneGoesOn) {
  const SessionOptions job = Job();
  std::vector<SessionOptions> by_rank = On(*on_gpu_, job);
  by_rank[0].host_executor = [](UniqueFd, const ExecutorIsStuck&) {
    return absl::InternalError("no executor today");
  };
  EXPECT_THAT(Session::Open(by_rank[0]),
              StatusIs(StatusCode::kInternal, HasSubstr("no executor today")));
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_gpu_, job));
    ASSERT_OK(Train(&team, 2));
    on_gpu_->KillExecutorForTest(job.job_id, 0);
    EXPECT_THAT(TrainOne(team.session(0), 3),
                StatusIs(StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr("rank 0: its executor in this process has ended"),
                               HasSubstr("attach again"))));
    EXPECT_FALSE(team.session(0)->hosts_executor());
    std::thread other([&] { EXPECT_OK(TrainOne(team.session(1), 4)); });
    team.Close(0);
    EXPECT_OK(team.Reopen(On(*on_gpu_, job)[0]));
    EXPECT_OK(TrainOne(team.session(0), 4));
    other.join();
    EXPECT_TRUE(StateOf(&team) == OnTheProcessor(job, 4));
  }
  // It attaches though the device has no room, and leaves the rank free.
  FakeGpu()->FailCall("MemAlloc", 2);
  EXPECT_THAT(Session::Open(On(*on_gpu_, job)[0]),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("parameters: cuda:0")));
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_gpu_, job));
  EXPECT_OK(Train(&team, 5));
}

}  // namespace
}  // namespace tessera
