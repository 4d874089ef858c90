// What jobs save, load, show, take and hand over where drivers of GPUs, which are fakes here, pass
// no memory between processes: it is what workers without a GPU do.
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tessera/hand_over.h"
#include "tests/integration/gpu_in_process_fixture.h"
#include "tests/testing/live_puts.h"
#include "worker/service/worker_server.h"

namespace tessera {
namespace {

using testing_support::LiveReading;
using testing_support::PutOutcome;
using testing_support::PutWhileTraining;
using testing_support::ReadLive;
using testing_support::ReadStored;
using testing_support::WritePutFile;

TEST_F(GpuInProcessTest, CheckpointsGoToTheProcessorAndBackToTheBit) {
  const SessionOptions job = Job();
  JobState saved, in_background, after;
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_gpu_, job));
    ASSERT_OK(Train(&team, 2));
    saved = StateOf(&team);
    ASSERT_OK(Save(&team, Path("saved")));
    ASSERT_OK(Train(&team, 3));
    in_background = StateOf(&team);
    SaveOptions options;
    options.in_background = true;
    ASSERT_OK(Save(&team, Path("background"), options));
    ASSERT_OK(Train(&team, 5));
    ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
    after = StateOf(&team);
    // A job that went on goes back, and on again.
    ASSERT_OK(Load(&team, Path("saved")));
    EXPECT_TRUE(StateOf(&team) == saved);
    ASSERT_OK(Train(&team, 5));
    EXPECT_TRUE(StateOf(&team) == after);
  }
  Delete(*on_gpu_, job.job_id);
  for (const auto& [path, expected] :
       {std::pair("saved", &saved), {"background", &in_background}}) {
    SCOPED_TRACE(path);
    const SessionOptions other = Job();
    for (LocalCluster* cluster : {on_host_.get(), on_gpu_.get()}) {
      {
        ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*cluster, other));
        ASSERT_OK(Load(&team, Path(path)));
        EXPECT_TRUE(StateOf(&team) == *expected);
        ASSERT_OK(Train(&team, 5));
        EXPECT_TRUE(StateOf(&team) == after);
      }
      Delete(*cluster, other.job_id);
    }
  }
}

TEST_F(GpuInProcessTest, LiveReadingsAreTheStateAndValuesAreSetWhileItTrains) {
  const SessionOptions job = Job();
  const std::string coordinator = on_gpu_->coordinator_address();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, Open(*on_gpu_, job));
  ASSERT_OK(Train(&team, 3));
  ASSERT_OK(Save(&team, Path("saved")));
  const LiveReading read = ReadLive(coordinator, job.job_id, Path("now.safetensors"));
  ASSERT_TRUE(read.ok) << read.error;
  EXPECT_EQ(read.step, 3);
  EXPECT_EQ(read.values, ReadStored(Path("saved")));

  WritePutFile(Path("put.safetensors"), {ToyModel(kUnits, true).units[1].parameters[0],
                                         ToyModel(kUnits, true).units[2].parameters[2]});
  const PutOutcome put = PutWhileTraining(
      coordinator, job.job_id, {"--from", Path("put.safetensors")}, Path("now.safetensors"),
      [&] { EXPECT_OK(Train(&team, team.session(0)->next_step())); });
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  ASSERT_TRUE(put.applied);
  for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
    EXPECT_EQ(put.after.values.at(name), tensor) << name;
  // The trainers see it and continue from it, as those of a job that loaded it do.
  const int64_t step = put.after.step;
  ASSERT_OK(Save(&team, Path("put")));
  ASSERT_OK(Train(&team, step + 2));
  ASSERT_OK_AND_ASSIGN(TrainerTeam other, Open(*on_host_, Job()));
  ASSERT_OK(Load(&other, Path("put")));
  ASSERT_OK(Train(&other, step + 2));
  EXPECT_TRUE(StateOf(&other) == StateOf(&team));
}

TEST_F(GpuInProcessTest, JobIsHandedToTheProcessorAndBackToTheBit) {
  WorkerServer::Options on_host;
  on_host.worker_id = "host";
  on_host.coordinator_address = on_gpu_->coordinator_address();
  on_host.num_devices = 3;                          // Its job needs all of them.
  std::string sockets = "/tmp/tessera-gpu-XXXXXX";  // Paths of sockets are short.
  ASSERT_NE(mkdtemp(sockets.data()), nullptr);
  on_host.socket_dir = sockets;
  SessionOptions job = Job();
  auto team = std::make_unique<TrainerTeam>();
  {
    ASSERT_OK_AND_ASSIGN(*team, Open(*on_gpu_, job));
    ASSERT_OK(Train(team.get(), 3));
    ASSERT_OK_AND_ASSIGN(const auto worker, WorkerServer::Start(on_host));
    for (const bool to_gpu : {false, true}) {
      SCOPED_TRACE(to_gpu);
      const JobState expected = StateOf(team.get());
      const std::string from = job.job_id;
      std::vector<absl::Status> handed;
      std::thread old(
          [&] { handed = team->Run([](Session* session) { return HandOver(session, {"own"}); }); });
      job = Job(to_gpu ? 2 : 3);
      std::vector<SessionOptions> by_rank(3, job);
      for (int rank = 0; rank < 3; ++rank) {
        by_rank[rank].rank = rank;
        by_rank[rank].coordinator_address = on_gpu_->coordinator_address();
        by_rank[rank].worker_address = worker->address();
      }
      auto taker = TrainerTeam::OpenEach(to_gpu ? On(*on_gpu_, job) : by_rank);
      ASSERT_OK(taker);
      EXPECT_EQ(DeviceGradients(taker->session(0)).available(), to_gpu);
      EXPECT_OK(taker->RunAll([&](Session* session) {
        return TakeOver(session, {from, absl::Seconds(30)}).status();
      }));
      old.join();
      for (const absl::Status& status : handed) EXPECT_OK(status);
      EXPECT_TRUE(StateOf(&*taker) == expected);
      ASSERT_OK(Train(&*taker, expected.step + 2));
      *team = *std::move(taker);
    }
    team.reset();
  }
  std::filesystem::remove_all(sockets);
}

}  // namespace
}  // namespace tessera
