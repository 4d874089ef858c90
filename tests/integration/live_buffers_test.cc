// Buffers of modules that train, read by clients: through a real coordinator, workers and
// executors' processes, with trainers that go on meanwhile.
#include <stdlib.h>
#include <torch/torch.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/cpp/local_cluster.h"
#include "client/cpp/optimizer_state.h"
#include "client/torch/model_buffers.h"
#include "client/torch/model_checkpoint.h"
#include "client/torch/sharded_model.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/live_puts.h"
#include "tests/testing/process_view.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using testing_support::CliResult;
using testing_support::ReadFile;
using testing_support::ReadStored;
using testing_support::ResidentBytesOf;
using testing_support::RunTessera;
using testing_support::StoredValues;

constexpr int kWorldSize = 2;
constexpr int64_t kTableElements = kMaxComparedBytes / 4 + 1;  // So that it is not compared.

// A batch norm, whose kernels write to its statistics without a trace; an integer; a mask that
// stays; and a table that changes in each third step.
struct NormNetImpl : torch::nn::Module {
  NormNetImpl() {
    in = register_module("in", torch::nn::Linear(3, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    out = register_module("out", torch::nn::Linear(8, 1));
    seen = register_buffer("seen", torch::zeros({}, torch::kInt64));
    mask = register_buffer("mask", torch::tensor({true, false, true}));
    table = register_buffer("table", torch::zeros({kTableElements}));
    none = register_buffer("none", torch::empty({0, 2}, torch::kHalf));
  }
  torch::Tensor forward(torch::Tensor x) {
    const torch::NoGradGuard no_grad_for_counts;
    seen += x.size(0);
    if (seen.item<int64_t>() % 12 == 0) table += 1;
    const torch::AutoGradMode grad(true);
    x = in->forward(x * mask);
    return out->forward(uses_norm ? norm->forward(x) : x);
  }
  torch::nn::Linear in{nullptr}, out{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor seen, mask, table, none;
  bool uses_norm = true;
};
using NormNet = Sharded<NormNetImpl>;

struct Trainer {
  std::shared_ptr<NormNet> net;
  std::unique_ptr<ShardedModel> model;
};

std::string BytesOf(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().cpu().contiguous();
  return {static_cast<const char*>(plain.data_ptr()), plain.nbytes()};
}

// By name: the dtype as a file calls it, and the bytes.
StoredValues BuffersOf(const torch::nn::Module& module) {
  StoredValues values;
  for (const auto& item : module.named_buffers()) {
    if (!item.value().defined()) continue;
    values[item.key()] = {std::string(Name(*StoredDTypeOf(item.value().scalar_type()))),
                          BytesOf(item.value())};
  }
  return values;
}

class LiveBuffersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // With its last object gRPC ends all of itself, which takes it 10 s now and then: one stays.
    static const auto* const last = new grpc::CompletionQueue();
    ASSERT_NE(last, nullptr);
    torch::set_num_threads(1);
    std::string path = ::testing::TempDir() + "/live-buffers-XXXXXX";
    folder_ = mkdtemp(path.data());
    LocalCluster::Options options;
    options.num_workers = kWorldSize;  // One has the buffers, the other one the last rank.
    options.executor_binary = "worker/tessera-executor";
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  absl::StatusOr<Trainer> Attach(int rank, const AttachOptions& attach, const std::string& job) {
    SessionOptions options;
    options.coordinator_address = cluster_->coordinator_address();
    options.worker_address = cluster_->worker_address(rank);
    options.job_id = job;
    options.rank = rank;
    options.config.world_size = kWorldSize;
    options.config.optimizer = OptimizerKind::kSgd;
    options.attach_timeout = absl::Seconds(60);
    options.operation_timeout = absl::Seconds(120);
    options.wait_if_attached = true;  // One that is gone may just be detaching.
    Trainer trainer;
    {
      absl::MutexLock lock(&mu_);  // libtorch's seed is the process's.
      torch::manual_seed(3);
      trainer.net = std::make_shared<NormNet>();
    }
    auto model = ShardedModel::Attach(trainer.net, options, AlwaysWrap(), attach);
    if (!model.ok()) return model.status();
    trainer.model = *std::move(model);
    return trainer;
  }
  // Takes a step; notes what rank 0's buffers are with it. `in_body`: behind the backward.
  absl::Status Step(int rank, Trainer* trainer,
                    const std::function<absl::Status()>& in_body = nullptr) {
    return trainer->model->RunStep([&] {
      const int64_t step = trainer->model->next_step();
      const torch::Tensor x = torch::sin(torch::arange(12).view({4, 3}) * (step + 2.0) + rank);
      trainer->net->forward(x).square().mean().backward();
      if (rank == 0) {
        const ShardedModel::OriginalBuffers original(trainer->model.get());
        StoredValues buffers = BuffersOf(*trainer->net);
        absl::MutexLock lock(&mu_);
        by_step_[step] = std::move(buffers);
      }
      if (in_body != nullptr) RETURN_IF_ERROR(in_body());
      return trainer->model->Step();
    });
  }
  // Runs `body` as each rank, attached.
  void OnEachRank(const std::function<void(int, Trainer&)>& body, const AttachOptions& attach = {},
                  const std::string& job = "toy") {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ranks.emplace_back([&, rank] {
        auto trainer = Attach(rank, attach, job);
        ASSERT_OK(trainer);
        body(rank, *trainer);
      });
    }
    for (std::thread& rank : ranks) rank.join();
  }
  // All ranks meet.
  void Meet() {
    absl::MutexLock lock(&mu_);
    const int end = (arrived_++ / kWorldSize + 1) * kWorldSize;
    const auto all = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return arrived_ >= end; };
    mu_.Await(absl::Condition(&all));
  }

  // What rank 0 sees of it, for all ranks, so that they take as many steps.
  bool AllSee(int rank, const std::atomic<bool>& flag) {
    Meet();
    if (rank == 0) seen_.store(flag.load());
    Meet();
    return seen_.load();
  }

  CliResult Tessera(std::vector<std::string> args) {
    return RunTessera(cluster_->coordinator_address(), std::move(args));
  }
  // The state of the job; its step.
  int64_t Get(const std::vector<std::string>& flags, StoredValues* values) {
    const std::string path = Path("get.safetensors");
    std::vector<std::string> args = {"get", "toy", "--json", "--out", path};
    args.insert(args.end(), flags.begin(), flags.end());
    const CliResult result = Tessera(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (result.exit_code != 0) return -1;
    *values = ReadStored(path);
    return nlohmann::json::parse(result.out)["step"];
  }
  void ExpectBuffers(const StoredValues& read, const StoredValues& expected) {
    EXPECT_FALSE(expected.empty());
    for (const auto& [name, value] : expected) {
      ASSERT_EQ(read.count(name), 1u) << name;
      EXPECT_EQ(read.at(name).first, value.first) << name;
      EXPECT_TRUE(read.at(name).second == value.second) << name;
    }
  }
  StoredValues At(int64_t step) {
    absl::MutexLock lock(&mu_);
    return by_step_[step];
  }

  StoredValues Put() {
    absl::MutexLock lock(&mu_);
    return put_;
  }

  std::string folder_;
  std::atomic<int64_t> trained_step_{0};
  std::atomic<bool> put_ended_{false}, seen_{false};
  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex mu_;
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<int64_t, StoredValues> by_step_ ABSL_GUARDED_BY(mu_);
  StoredValues put_ ABSL_GUARDED_BY(mu_);
  StoredValues by_rank_[kWorldSize];
};

TEST_F(LiveBuffersTest, EachReadingHasThoseOfItsStepInTheirDTypesBothWaysWhileTrainingGoesOn) {
  std::atomic<bool> stop{false};
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    std::thread reader;
    if (rank == 0) {
      reader = std::thread([&] {
        int64_t last_step = 0;
        for (int i = 0; i < 12; ++i) {
          StoredValues values;
          std::vector<std::string> flags;
          if (i % 2 == 0) flags.push_back("--through-coordinator");
          if (i % 3 == 0) flags.push_back("--dtype=bf16");
          const int64_t step = Get(flags, &values);
          EXPECT_GE(step, last_step);
          last_step = step;
          ExpectBuffers(values, At(step));
          EXPECT_EQ(values.at("in.weight").first, i % 3 == 0 ? "BF16" : "F32");
        }
        stop.store(true);
      });
    }
    while (!AllSee(rank, stop)) ASSERT_OK(Step(rank, &trainer));
    if (rank == 0) reader.join();
  });
}

TEST_F(LiveBuffersTest, BuffersThatComputeInAnotherDTypeAreReadInTheirOwn) {
  AttachOptions attach;
  attach.precision.buffer_dtype = DType::kBf16;
  OnEachRank(
      [&](int rank, Trainer& trainer) {
        trainer.net->uses_norm = false;  // It computes in no other dtype on the processor.
        for (int i = 0; i < 3; ++i) ASSERT_OK(Step(rank, &trainer));
        EXPECT_EQ(trainer.net->table.scalar_type(), torch::kBFloat16);
        Meet();
        if (rank == 0) {
          StoredValues values;
          EXPECT_EQ(Get({}, &values), 3);
          EXPECT_EQ(values.at("norm.running_mean").first, "F32");
          ExpectBuffers(values, At(3));
        }
        Meet();
      },
      attach);
}

// The trainers have what was loaded in their modules only once the load has returned, and say so at
// the next version; a reader gets it with the version that the load made.
TEST_F(LiveBuffersTest, ReaderRightBehindALoadGetsWhatWasLoaded) {
  StoredValues saved;
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 2; ++i) ASSERT_OK(Step(rank, &trainer));
    if (rank == 0) saved = BuffersOf(*trainer.net);
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path("checkpoint")));
    for (int i = 0; i < 4; ++i) ASSERT_OK(Step(rank, &trainer));
    StoredValues values;
    if (rank == 0) {
      EXPECT_EQ(Get({}, &values), 6);
      ExpectBuffers(values, At(6));
      EXPECT_NE(values.at("seen"), saved.at("seen"));
    }
    ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), Path("checkpoint")));
    Meet();
    if (rank == 0) {
      EXPECT_EQ(Get({}, &values), 2);
      ExpectBuffers(values, saved);
      // One that fails changes nothing.
      EXPECT_EQ(Get({"--through-coordinator"}, &values), 2);
      ExpectBuffers(values, saved);
    }
    Meet();
    EXPECT_FALSE(LoadModelCheckpoint(trainer.model.get(), Path("nothing")).ok());
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      EXPECT_EQ(Get({}, &values), 3);
      ExpectBuffers(values, At(3));
    }
    Meet();
  });
}

TEST_F(LiveBuffersTest, ListsFilesAndComparisonsHaveThem) {
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 2; ++i) ASSERT_OK(Step(rank, &trainer));
    ASSERT_OK(SaveModelCheckpoint(trainer.model.get(), Path("checkpoint")));
    Meet();
    if (rank == 0) {
      const CliResult list = Tessera({"ls", "--job", "toy"});
      EXPECT_EQ(list.exit_code, 0) << list.err;
      EXPECT_THAT(list.out, testing::ContainsRegex("model +norm.num_batches_tracked +I64"));
      EXPECT_THAT(list.out, testing::ContainsRegex("model +mask +BOOL +\\[3\\]"));
      const CliResult same = Tessera({"diff", "--job", "toy", Path("checkpoint")});
      EXPECT_EQ(same.exit_code, 0) << same.out << same.err;
      EXPECT_THAT(same.out, HasSubstr("equal: 13 of 13"));
      StoredValues values;
      EXPECT_EQ(Get({"--no-buffers"}, &values), 2);
      EXPECT_EQ(values.size(), 6u);
      EXPECT_EQ(values.count("seen"), 0u);
      EXPECT_EQ(Get({"--include=norm.running_*"}, &values), 2);
      EXPECT_EQ(values.size(), 2u);
    }
    Meet();
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      const CliResult diff = Tessera({"diff", "--job", "toy", Path("checkpoint"), "--match=seen"});
      EXPECT_EQ(diff.exit_code, 1);
      EXPECT_THAT(diff.out, HasSubstr("different: 1 of 1"));
    }
    Meet();
  });
}

// Whatever a rank's own were: after the step that takes the put its module has what was put, to the
// byte, and goes on from there.
TEST_F(LiveBuffersTest, PutsSetThemInTheModulesOfAllRanksBetweenTwoSteps) {
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 3; ++i) ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      StoredValues values;
      EXPECT_EQ(Get({}, &values), 3);
      std::filesystem::rename(Path("get.safetensors"), Path("put.safetensors"));
      absl::MutexLock lock(&mu_);
      put_ = BuffersOf(*trainer.net);
    }
    for (int i = 0; i < 3; ++i) ASSERT_OK(Step(rank, &trainer));
    Meet();
    const StoredValues before = BuffersOf(*trainer.net);
    const StoredValues put = Put();
    for (const std::string name : {"seen", "table", "norm.running_mean"})
      ASSERT_FALSE(before.at(name) == put.at(name)) << name;
    CliResult result;
    std::thread putter;
    if (rank == 0) {
      putter = std::thread([&] {
        result = Tessera({"put", "--job", "toy", "--from", Path("put.safetensors"), "--json"});
        put_ended_.store(true);
      });
    }
    std::map<int64_t, StoredValues> after;
    while (!AllSee(rank, put_ended_)) {
      ASSERT_OK(Step(rank, &trainer));
      after[trainer.model->next_step() - 1] = BuffersOf(*trainer.net);
    }
    if (rank == 0) {
      putter.join();
      ASSERT_EQ(result.exit_code, 0) << result.err;
      trained_step_.store(nlohmann::json::parse(result.out)["step"]);
    }
    Meet();
    const int64_t step = trained_step_.load();
    ASSERT_EQ(after.count(step), 1u);
    ExpectBuffers(after[step], put);
    ASSERT_OK(Step(rank, &trainer));
    if (after.count(step + 1) == 0) after[step + 1] = BuffersOf(*trainer.net);
    int64_t seen, was;
    memcpy(&seen, after[step + 1].at("seen").second.data(), sizeof(seen));
    memcpy(&was, put.at("seen").second.data(), sizeof(was));
    EXPECT_EQ(seen, was + 4) << "rank " << rank;
    Meet();
    if (rank == 0) {
      StoredValues values;
      ExpectBuffers(values, At(Get({}, &values)));
    }
    Meet();
  });
}

TEST_F(LiveBuffersTest, PutOfABufferThatDoesNotFitIsRefusedByNameAndSetsNothing) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    if (rank == 0) {
      StoredValues values;
      EXPECT_EQ(Get({"--include=seen"}, &values), 1);
      std::string file = ReadFile(Path("get.safetensors"));
      file.replace(file.find("\"I64\""), 5, "\"U64\"");
      std::ofstream(Path("put.safetensors"), std::ios::binary) << file;
      const CliResult dtype = Tessera({"put", "--job", "toy", "--from", Path("put.safetensors")});
      EXPECT_NE(dtype.exit_code, 0);
      EXPECT_THAT(dtype.err,
                  testing::AllOf(HasSubstr("buffer 'seen'"), HasSubstr("U64"), HasSubstr("I64")));
      const CliResult none =
          Tessera({"put", "--job", "toy", "--from", Path("put.safetensors"), "--no-buffers"});
      EXPECT_NE(none.exit_code, 0);
      EXPECT_THAT(none.err, HasSubstr("nothing there is to be set"));
    }
    Meet();
    ASSERT_OK(Step(rank, &trainer));
    EXPECT_EQ(trainer.net->seen.item<int64_t>(), 8);
  });
}

// Of each rank its own: they differ, since their inputs do.
TEST_F(LiveBuffersTest, TrainerThatTakesARankOverGoesOnFromItsPredecessorsBuffers) {
  OnEachRank([&](int rank, Trainer& trainer) {
    for (int i = 0; i < 4; ++i) ASSERT_OK(Step(rank, &trainer));
    const StoredValues before = BuffersOf(*trainer.net);
    {
      absl::MutexLock lock(&mu_);
      by_rank_[rank] = before;
    }
    // For a step that is undone, and what its trainer does outside of steps.
    EXPECT_FALSE(trainer.model
                     ->RunStep([&]() -> absl::Status {
                       trainer.net->forward(torch::ones({4, 3})).sum().backward();
                       return absl::InternalError("not this one");
                     })
                     .ok());
    trainer.net->table += 1000;
    EXPECT_FALSE(BuffersOf(*trainer.net) == before);
    Meet();
    if (rank == 1) EXPECT_NE(by_rank_[0].at("norm.running_mean"), before.at("norm.running_mean"));
    trainer = Trainer();
    Meet();
    auto next = Attach(rank, {}, "toy");
    ASSERT_OK(next);
    EXPECT_EQ(next->model->next_step(), 5);
    ExpectBuffers(BuffersOf(*next->net), before);
    ASSERT_OK(Step(rank, &*next));
    EXPECT_EQ(next->net->seen.item<int64_t>(), 20);
    Meet();
  });
}

// An executor is killed once all ranks have been through backward: the step is done again, and
// statistics have seen its batch once.
TEST_F(LiveBuffersTest, StepThatIsDoneAgainBeginsFromTheBuffersThatItHad) {
  std::vector<StoredValues> undisturbed(kWorldSize), disturbed(kWorldSize);
  const auto train = [&](const std::string& job, bool disturb, std::vector<StoredValues>* ends) {
    OnEachRank(
        [&](int rank, Trainer& trainer) {
          for (int i = 1; i <= 6; ++i) {
            // Between two steps, which the step that is done again does not undo either.
            if (i == 3) trainer.net->table[0] = 77;
            if (i == 5) trainer.net->norm->running_mean += 0.5;
            int tries = 0;
            const auto in_body = [&]() -> absl::Status {
              if (!disturb || i % 2 == 0 || ++tries > 3) return absl::OkStatus();
              Meet();
              if (rank == 0) cluster_->KillExecutorForTest(job, 1);
              // Rank 0 asks for the step, which cannot be: rank 1 does not vote. Of the second try
              // nothing is said to rank 0's executor either.
              if (rank == 0 && tries != 2) return absl::OkStatus();
              absl::Status status;
              while (status.ok()) status = ReadProgress(&trainer.model->session()).status();
              return status;
            };
            ASSERT_OK(Step(rank, &trainer, in_body));
            if (disturb && i % 2 == 1) EXPECT_EQ(tries, 4) << "step " << i;
          }
          (*ends)[rank] = BuffersOf(*trainer.net);
        },
        {}, job);
  };
  train("undisturbed", false, &undisturbed);
  EXPECT_EQ(Tessera({"jobs", "delete", "undisturbed"}).exit_code, 0);
  train("disturbed", true, &disturbed);
  for (int rank = 0; rank < kWorldSize; ++rank) ExpectBuffers(disturbed[rank], undisturbed[rank]);
}

TEST_F(LiveBuffersTest, JobsThatDoNotPublishThemHaveNone) {
  AttachOptions attach;
  attach.publish_buffers = false;
  OnEachRank(
      [&](int rank, Trainer& trainer) {
        ASSERT_OK(Step(rank, &trainer));
        Meet();
        if (rank == 0) {
          StoredValues values;
          EXPECT_EQ(Get({}, &values), 1);
          EXPECT_EQ(values.size(), 6u);
        }
        Meet();
      },
      attach);
}

TEST_F(LiveBuffersTest, BufferThatGetsAnotherShapeIsAnErrorByNameAndNoStepIsTaken) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    if (rank == 0) {
      const torch::Tensor before = trainer.net->mask.clone();
      trainer.net->mask.set_data(torch::tensor({true}));
      EXPECT_THAT(Step(rank, &trainer),
                  StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("buffer 'mask'")));
      EXPECT_EQ(trainer.model->next_step(), 2);
      trainer.net->mask.set_data(before);
    }
    // The other rank is told too, if it is in the step already.
    absl::Status status;
    while (trainer.model->next_step() <= 2 && (status.ok() || rank == 1))
      status = Step(rank, &trainer);
    EXPECT_OK(status);
  });
}

TEST_F(LiveBuffersTest, ErrorInWhatIsPublishedIsToldToAllRanksOfALoadToo) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    EXPECT_OK(SaveModelCheckpoint(trainer.model.get(), Path("saved")));
    Meet();  // The end of the epoch is no answer to the save.
    const torch::Tensor before = trainer.net->mask.clone();
    if (rank == 0) trainer.net->mask.set_data(torch::tensor({true}));
    const absl::Status refused = LoadModelCheckpoint(trainer.model.get(), Path("saved")).status();
    EXPECT_THAT(std::string(refused.message()), HasSubstr("buffer 'mask'"));
    // On another worker it is the end of the epoch.
    EXPECT_EQ(refused.code(),
              rank == 0 ? absl::StatusCode::kFailedPrecondition : absl::StatusCode::kAborted);
    if (rank == 0) trainer.net->mask.set_data(before);
    if (rank == 1) ASSERT_OK(trainer.model->session().Recover());
    ASSERT_OK(LoadModelCheckpoint(trainer.model.get(), Path("saved")).status());
    ASSERT_OK(Step(rank, &trainer));
    EXPECT_EQ(trainer.model->next_step(), 3);
  });
}

TEST_F(LiveBuffersTest, Rank0AloneTakesMemoryForLargeOnesThatStayAsTheyAre) {
  OnEachRank([&](int rank, Trainer& trainer) {
    ASSERT_OK(Step(rank, &trainer));
    Meet();
    const auto resident = ResidentBytesOf(getpid(), "toy");
    const std::string label = absl::StrCat(rank, "/gradients");
    ASSERT_EQ(resident.count(label), 1u);
    EXPECT_EQ(resident.at(label) > kTableElements * int64_t{sizeof(float)}, rank == 0)
        << resident.at(label) << " bytes of rank " << rank;
    Meet();
  });
}

}  // namespace
}  // namespace tessera
