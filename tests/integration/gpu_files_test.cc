// What leaves and enters jobs whose ranks are on a GPU, which is a fake here: checkpoints, model
// files, live readings, puts and hand-overs, from the GPU to the host and back, to the bit.
#include <stdlib.h>

#include <atomic>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/fault_point.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/parts/consolidate.h"
#include "client/rpc/job_rpc.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/checkpoint.h"
#include "tessera/device_gradients.h"
#include "tessera/hand_over.h"
#include "tessera/stored_model.h"
#include "tests/testing/fake_gpu.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/gpu_clusters.h"
#include "tests/testing/gpu_training.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"
#include "tests/testing/toy_training.h"
#include "worker/device/cuda/cuda_error.h"
#include "worker/executor/executor_machine.h"
#include "worker/service/worker_server.h"

namespace tessera {
namespace {

using testing::IsEmpty;
using testing_support::CliResult;
using testing_support::Eventually;
using testing_support::FakeGpu;
using testing_support::FakeGpuMemory;
using testing_support::GpuClusters;
using testing_support::JobState;
using testing_support::LiveReading;
using testing_support::MakeFakeGpuDevice;
using testing_support::PublishToyBuffers;
using testing_support::PutOutcome;
using testing_support::PutWhileTraining;
using testing_support::ReadFile;
using testing_support::ReadFlightLog;
using testing_support::ReadLive;
using testing_support::ReadStored;
using testing_support::RunTessera;
using testing_support::StateOf;
using testing_support::StoredValues;
using testing_support::ToyBufferAt;
using testing_support::ToyBuffers;
using testing_support::ToyModel;
using testing_support::TrainerTeam;
using testing_support::WritePutFile;

// Whether the state is offloaded.
class GpuFilesTest : public GpuClusters, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    GpuClusters::SetUp();
    std::string path = testing::TempDir() + "/gpu-files-XXXXXX";
    folder_ = mkdtemp(path.data());
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    on_gpu_.reset();
    on_host_.reset();
    std::filesystem::remove_all(folder_);
  }
  SessionOptions Job(int world_size, Strategy strategy = Strategy::kFullShard) {
    SessionOptions options = GpuClusters::Job(world_size);
    options.config.cpu_offload = GetParam();
    options.config.strategy = strategy;
    options.config.max_gradient_norm = 0.5;
    return options;
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  static absl::Status Save(TrainerTeam* team, const std::string& path,
                           const SaveOptions& options = {}) {
    return team->RunAll([&](Session* session) {
      return SaveCheckpoint(session, path, {{}, absl::StrCat("of rank ", session->rank())},
                            options);
    });
  }
  static absl::Status Load(TrainerTeam* team, const std::string& path) {
    return team->RunAll([&](Session* session) { return LoadCheckpoint(session, path).status(); });
  }
  // What a job that was loaded from it has.
  JobState Loaded(const std::string& path) {
    auto team = TrainerTeam::Open(On(*on_host_, Job(1)));
    EXPECT_OK(team);
    EXPECT_OK(Load(&*team, path));
    return StateOf(&*team);
  }

  std::string folder_;
};

INSTANTIATE_TEST_SUITE_P(State, GpuFilesTest, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Offloaded" : "OnTheGpu";
                         });

TEST_P(GpuFilesTest, CheckpointsGoToTheProcessorAndBackToTheBitAndTrainingGoesOnAlike) {
  for (const OptimizerKind optimizer : {OptimizerKind::kAdamW, OptimizerKind::kSgd}) {
    const auto with = [&](SessionOptions job) {
      job.config.optimizer = optimizer;
      job.config.groups[0].momentum = optimizer == OptimizerKind::kSgd ? 0.9 : 0;
      return job;
    };
    const std::string name = absl::StrCat("optimizer", static_cast<int>(optimizer), "-");
    ASSERT_OK_AND_ASSIGN(TrainerTeam first, TrainerTeam::Open(On(*on_gpu_, with(Job(3)))));
    ASSERT_OK(Train(&first, 3));
    const JobState saved = StateOf(&first);
    ASSERT_OK(Save(&first, Path(name + "0")));
    ASSERT_OK(Train(&first, 5));
    int number = 0;
    for (const auto& [cluster, world, strategy] :
         {std::tuple(on_host_.get(), 2, Strategy::kShardGradOp),
          std::tuple(on_gpu_.get(), 4, Strategy::kNoShard),
          std::tuple(on_gpu_.get(), 1, Strategy::kFullShard),
          std::tuple(on_gpu_.get(), 3, Strategy::kFullShard)}) {
      SCOPED_TRACE(absl::StrCat(name, number));
      ASSERT_OK_AND_ASSIGN(TrainerTeam team,
                           TrainerTeam::Open(On(*cluster, with(Job(world, strategy)))));
      ASSERT_OK(Load(&team, Path(absl::StrCat(name, number))));
      EXPECT_TRUE(StateOf(&team) == saved);
      ASSERT_OK(Save(&team, Path(absl::StrCat(name, ++number))));
      ASSERT_OK_AND_ASSIGN(const Verification verified,
                           VerifyCheckpoint(Path(absl::StrCat(name, number))));
      EXPECT_THAT(verified.damages, IsEmpty());
      if (world != 3) continue;
      ASSERT_OK(Train(&team, 5));
      EXPECT_TRUE(StateOf(&team) == StateOf(&first)) << "the step's numbers came too";
    }
    // A job that went on goes back.
    ASSERT_OK(Load(&first, Path(absl::StrCat(name, number))));
    EXPECT_TRUE(StateOf(&first) == saved);
  }
}

TEST_P(GpuFilesTest, SaveInTheBackgroundHasTheStateOfItsStepWhateverTrainingDoesMeanwhile) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, Job(3))));
  SaveOptions background;
  background.in_background = true;
  ASSERT_OK(Train(&team, 2));
  const JobState saved = StateOf(&team);
  ASSERT_OK(Save(&team, Path("c"), background));
  ASSERT_OK(Train(&team, 7));
  ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
  EXPECT_TRUE(Loaded(Path("c")) == saved);
}

// The first one is not through when the second one comes.
TEST_P(GpuFilesTest, SavesThatFollowEachOtherCloselyHaveTheStatesOfTheirSteps) {
  const SessionOptions job = Job(2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, job)));
  SaveOptions background;
  background.in_background = true;
  ASSERT_OK(Train(&team, 2));
  const JobState saved = StateOf(&team);
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.written", hold);  // Of one rank: it goes once.
  ASSERT_OK(Save(&team, Path("first"), background));
  ASSERT_OK(Train(&team, 3));
  const JobState next = StateOf(&team);
  const int copies = FakeGpu()->num_calls("MemcpyAsync");
  absl::Status second;
  std::thread saver([&] { second = Save(&team, Path("second")); });
  // The executors are at the second one.
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(Eventually([&] {
      int saves = 0;
      for (const auto& op : ReadFlightLog(on_gpu_->worker_address(), job.job_id, rank))
        saves += op.op == "save" ? 1 : 0;
      return saves == 2;
    }));
  }
  if (!GetParam()) {
    EXPECT_EQ(FakeGpu()->num_calls("MemcpyAsync"), copies) << "the image is the first one's still";
  }
  DisarmAllFaultPoints();
  saver.join();
  ASSERT_OK(second);
  EXPECT_TRUE(Loaded(Path("first")) == saved);
  EXPECT_TRUE(Loaded(Path("second")) == next);
}

TEST_P(GpuFilesTest, SaveInTheBackgroundTakesTheImageForItsCopyAndHoldsNoStepUp) {
  if (GetParam()) GTEST_SKIP() << "an offloaded state has no image";
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, Job(2))));
  ASSERT_OK(Train(&team, 2));
  const JobState saved = StateOf(&team);
  Fault hold;
  hold.action = FaultAction::kHold;
  ArmFaultPoint("save.created", hold);  // Nothing is taken before training comes, and
  ArmFaultPoint("save.copy", hold);     // a thread that copied then would never end.
  SaveOptions background;
  background.in_background = true;
  ASSERT_OK(Save(&team, Path("c"), background));
  ASSERT_OK(Train(&team, 7));
  DisarmAllFaultPoints();
  ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
  EXPECT_TRUE(Loaded(Path("c")) == saved);
}

TEST_P(GpuFilesTest, StateThatHasNoPinnedMemoryIsSavedAndLoadedAllTheSame) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, Job(2))));
  ASSERT_OK(Train(&team, 2));
  const JobState saved = StateOf(&team);
  // Of each rank one image to save and one to load; an offloaded state needs none.
  const int images = GetParam() ? 0 : 2 * 2;
  const int calls = FakeGpu()->num_calls("MemHostAlloc");
  for (int i = 0; i < images; ++i) FakeGpu()->FailCall("MemHostAlloc", kCudaOutOfMemory);
  ASSERT_OK(Save(&team, Path("c")));
  EXPECT_TRUE(Loaded(Path("c")) == saved);
  ASSERT_OK(Load(&team, Path("c")));
  EXPECT_TRUE(StateOf(&team) == saved);
  EXPECT_EQ(FakeGpu()->num_calls("MemHostAlloc"), calls + images) << "each has failed";
}

// The next rank that asks for an image has neither kind of memory for it.
void RefuseOneImage() { ArmFaultPoint("image.reserve", {}); }

// Of a job whose state is on the GPU: an offloaded one needs no image.
TEST_P(GpuFilesTest, RankWithoutMemoryForItsImageIsTheOutcomeOfAllAndTrainingGoesOn) {
  if (GetParam()) GTEST_SKIP() << "an offloaded state has no image";
  const SessionOptions job = Job(2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, job)));
  ASSERT_OK(Train(&team, 2));
  const auto expect_refused = [](const std::vector<absl::Status>& statuses) {
    const auto refused =
        StatusIs(absl::StatusCode::kResourceExhausted,
                 testing::ContainsRegex("rank [01]: no host memory for [0-9]+ bytes"));
    EXPECT_THAT(statuses, testing::ElementsAre(refused, refused));
    EXPECT_EQ(statuses[0], statuses[1]);
  };
  const auto save = [&](bool in_background) {
    SaveOptions options;
    options.in_background = in_background;
    return team.Run([&, options](Session* session) {
      return SaveCheckpoint(session, Path("c"), {{}, ""}, options);
    });
  };
  const auto load = [&] {
    return team.Run([&](Session* session) { return LoadCheckpoint(session, Path("c")).status(); });
  };
  const auto epoch = [&] {
    const auto view =
        GetJob({on_gpu_->coordinator_address()}, job.job_id, absl::Now() + absl::Minutes(1));
    EXPECT_OK(view);
    return view->epoch();
  };
  const auto first_epoch = epoch();
  RefuseOneImage();
  expect_refused(save(/*in_background=*/false));
  ASSERT_OK(Train(&team, 3));
  RefuseOneImage();
  expect_refused(save(/*in_background=*/true));
  ASSERT_OK(Train(&team, 4));
  const JobState saved = StateOf(&team);
  EXPECT_THAT(save(false), testing::Each(IsOk()));
  RefuseOneImage();
  expect_refused(load());
  ASSERT_OK(Train(&team, 5));

  RefuseOneImage();
  const PutOutcome put = PutWhileTraining(
      on_gpu_->coordinator_address(), job.job_id, {"--from", Path("c"), "--moments"},
      Path("now.safetensors"), [&] { EXPECT_OK(Train(&team, team.session(0)->next_step())); });
  EXPECT_NE(put.result.exit_code, 0);
  EXPECT_FALSE(put.applied);
  EXPECT_THAT(put.result.err, testing::ContainsRegex("rank [01]: no host memory for [0-9]+"));
  EXPECT_EQ(epoch(), first_epoch) << "no operation ended it";
  EXPECT_THAT(load(), testing::Each(IsOk()));
  EXPECT_TRUE(StateOf(&team) == saved);
}

TEST_P(GpuFilesTest, ModelFilesGoToTheProcessorAndBack) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, Job(3))));
  ASSERT_OK(Train(&team, 3));
  const auto save = [&](TrainerTeam* saver, const std::string& name) {
    ASSERT_OK(saver->RunAll([&](Session* session) { return SaveModel(session, Path(name)); }));
  };
  save(&team, "gpu");
  std::string from = "gpu";
  for (LocalCluster* const cluster : {on_host_.get(), on_gpu_.get()}) {
    ASSERT_OK_AND_ASSIGN(TrainerTeam other, TrainerTeam::Open(On(*cluster, Job(2))));
    ASSERT_OK(
        other.RunAll([&](Session* session) { return LoadModel(session, Path(from)).status(); }));
    EXPECT_EQ(other.session(0)->next_step(), 1);
    from += "-on";
    save(&other, from);
    EXPECT_EQ(ReadFile(Path(from)), ReadFile(Path("gpu")));
  }
  // Into a job that has values: moments stay.
  const JobState before = StateOf(&team);
  ASSERT_OK(Train(&team, 4));
  ASSERT_OK(
      team.RunAll([&](Session* session) { return LoadModel(session, Path("gpu")).status(); }));
  const JobState after = StateOf(&team);
  EXPECT_EQ(after.tensors.at("unit0.weight"), before.tensors.at("unit0.weight"));
  EXPECT_NE(after.tensors.at("unit0.weight/1"), before.tensors.at("unit0.weight/1"));
}

TEST_P(GpuFilesTest, PartsAreOneCheckpointOnceTheyAreConsolidated) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, Job(3))));
  ASSERT_OK(Train(&team, 2));
  SaveOptions parts;
  parts.in_parts = true;
  parts.in_background = true;
  ASSERT_OK(Save(&team, Path("parts"), parts));
  ASSERT_OK(team.RunAll([](Session* session) { return AwaitSave(session); }));
  ASSERT_OK(Consolidate({Path("parts")}, Path("whole"), {}).status());
  EXPECT_TRUE(Loaded(Path("whole")) == StateOf(&team));
}

TEST_P(GpuFilesTest, EachLiveReadingIsTheStateOfAStepAsTrainersSaveIt) {
  SessionOptions job = Job(2);
  job.model.buffers = ToyBuffers();
  std::map<int64_t, StoredValues> read;
  {
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, job)));
    ASSERT_OK(team.RunAll([](Session* session) {
      PublishToyBuffers(session);
      return absl::OkStatus();
    }));
    ASSERT_OK(Train(&team, 1));
    std::atomic<bool> stop{false};
    std::atomic<int64_t> step{1};
    absl::Status trained;
    std::thread training([&] {
      while (!stop.load() && trained.ok()) {
        trained = Train(&team, step.load() + 1);
        step.fetch_add(1);
      }
    });
    for (int i = 0; i < 4; ++i) {
      const LiveReading now =
          ReadLive(on_gpu_->coordinator_address(), job.job_id, Path("get.safetensors"));
      EXPECT_TRUE(now.ok) << now.error;
      read[now.step] = now.values;
      for (const int64_t until = step.load() + 2; step.load() < until && trained.ok();)
        std::this_thread::yield();
    }
    stop.store(true);
    training.join();
    ASSERT_OK(trained);
  }
  EXPECT_GE(read.size(), 3u);
  for (auto& [step, values] : read) {
    for (size_t i = 0; i < job.model.buffers.size(); ++i) {
      const std::string& name = job.model.buffers[i].name;
      EXPECT_TRUE(values[name].second == ToyBufferAt(static_cast<int>(i), step)) << name;
      values.erase(name);
    }
  }
  job.job_id += "-calm";
  ASSERT_OK_AND_ASSIGN(TrainerTeam calm, TrainerTeam::Open(On(*on_host_, job)));
  for (const auto& [step, values] : read) {
    ASSERT_OK(Train(&calm, step));
    const std::string path = Path(absl::StrCat("step-", step));
    ASSERT_OK(Save(&calm, path));
    EXPECT_TRUE(ReadStored(path) == values) << "step " << step;
  }
}

TEST_P(GpuFilesTest, ValuesAndMomentsAreSetWhileItTrains) {
  const SessionOptions job = Job(2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, job)));
  ASSERT_OK(Train(&team, 2));
  ASSERT_OK(Save(&team, Path("saved")));
  ASSERT_OK(Train(&team, 4));
  const auto put = [&](std::vector<std::string> args) {
    return PutWhileTraining(on_gpu_->coordinator_address(), job.job_id, std::move(args),
                            Path("now.safetensors"),
                            [&] { EXPECT_OK(Train(&team, team.session(0)->next_step())); });
  };
  std::vector<TensorSpec> some = {ToyModel(3, true).units[1].parameters[0],
                                  ToyModel(3, true).units[2].parameters[2]};
  WritePutFile(Path("put.safetensors"), some);
  const PutOutcome values = put({"--from", Path("put.safetensors")});
  ASSERT_EQ(values.result.exit_code, 0) << values.result.err;
  ASSERT_TRUE(values.applied);
  for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
    EXPECT_EQ(values.after.values.at(name), tensor) << name;

  const PutOutcome moments = put({"--from", Path("saved"), "--moments"});
  ASSERT_EQ(moments.result.exit_code, 0) << moments.result.err;
  ASSERT_TRUE(moments.applied);
  EXPECT_EQ(moments.after.values, ReadStored(Path("saved")));
  const JobState state = StateOf(&team);
  for (const auto& [name, count] : state.update_counts)
    EXPECT_EQ(count, name.find("frozen") == std::string::npos ? 2 : 0) << name;
  // Trainers see it, and continue from there: as a job that has the same from a file.
  const int64_t step = moments.after.step;
  ASSERT_OK(Save(&team, Path("put")));
  ASSERT_OK(Train(&team, step + 2));
  ASSERT_OK_AND_ASSIGN(TrainerTeam other, TrainerTeam::Open(On(*on_host_, Job(2))));
  ASSERT_OK(Load(&other, Path("put")));
  ASSERT_OK(Train(&other, step + 2));
  EXPECT_TRUE(StateOf(&other) == StateOf(&team));
}

TEST_P(GpuFilesTest, CheckpointThatIsAskedForIsOfOneStep) {
  SessionOptions job = Job(2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*on_gpu_, job)));
  ASSERT_OK(Train(&team, 1));
  CliResult saved;
  std::atomic<bool> over{false};
  std::thread command([&] {
    saved = RunTessera(on_gpu_->coordinator_address(),
                       {"save", "--job", job.job_id, "--to", Path("c"), "--wait", "--json"});
    over.store(true);
  });
  absl::Status trained;
  for (int64_t step = 2; !over.load() && trained.ok(); ++step) trained = Train(&team, step);
  command.join();
  ASSERT_OK(trained);
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  const int64_t step = nlohmann::json::parse(saved.out)["step"];
  job.job_id += "-calm";
  ASSERT_OK_AND_ASSIGN(TrainerTeam calm, TrainerTeam::Open(On(*on_host_, job)));
  ASSERT_OK(Train(&calm, step));
  EXPECT_TRUE(Loaded(Path("c")) == StateOf(&calm));
}

// Of workers that have room for one of the jobs each.
TEST_P(GpuFilesTest, JobIsHandedFromTheGpuToTheProcessorAndBackToTheBit) {
  LocalCluster::Options options;
  options.num_devices = 2;
  options.device_memory = FakeGpuMemory();
  options.machine = std::make_shared<ExecutorMachine>();
  options.machine->make_device = MakeFakeGpuDevice;
  ASSERT_OK_AND_ASSIGN(const auto cluster, LocalCluster::Start(options));
  SessionOptions job = Job(2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(On(*cluster, job)));
  WorkerServer::Options on_host;
  on_host.worker_id = "host";
  on_host.coordinator_address = cluster->coordinator_address();
  on_host.num_devices = 3;
  std::string sockets = "/tmp/tessera-gpu-XXXXXX";  // Paths of sockets are short.
  ASSERT_NE(mkdtemp(sockets.data()), nullptr);
  on_host.socket_dir = sockets;
  ASSERT_OK_AND_ASSIGN(const auto worker, WorkerServer::Start(on_host));
  ASSERT_OK(Train(&team, 3));
  for (const bool to_gpu : {false, true}) {
    SCOPED_TRACE(to_gpu);
    const JobState expected = StateOf(&team);
    const std::string from = job.job_id;
    std::vector<absl::Status> handed;
    std::thread old(
        [&] { handed = team.Run([](Session* session) { return HandOver(session, {"own"}); }); });
    job = On(*cluster, to_gpu ? Job(2) : Job(3, Strategy::kNoShard));
    if (!to_gpu) job.worker_address = worker->address();
    auto taker = TrainerTeam::Open(job);
    EXPECT_OK(taker);
    EXPECT_EQ(DeviceGradients(taker->session(0)).available(), to_gpu);
    EXPECT_OK(taker->RunAll([&](Session* session) {
      return TakeOver(session, {from, absl::Seconds(30)}).status();
    }));
    old.join();
    for (const absl::Status& status : handed) EXPECT_OK(status);
    EXPECT_TRUE(StateOf(&*taker) == expected);
    ASSERT_OK(Train(&*taker, expected.step + 2));
    team = *std::move(taker);
  }
  std::filesystem::remove_all(sockets);
}

}  // namespace
}  // namespace tessera
