// A model with buffers of several kinds, trained by ranks that are threads of the test, with
// executors' processes, for tests of what clients read and put of them. A test fixture.
#ifndef TESSERA_TESTS_INTEGRATION_LIVE_BUFFERS_FIXTURE_H_
#define TESSERA_TESTS_INTEGRATION_LIVE_BUFFERS_FIXTURE_H_

#include <stdlib.h>
#include <torch/nn/modules/batchnorm.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/torch/model_buffers.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tessera/local_cluster.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"
#include "tests/testing/live_puts.h"

namespace tessera {

using testing_support::CliResult;
using testing_support::StoredValues;

inline constexpr int kWorldSize = 2;
inline constexpr int64_t kTableElements = kMaxComparedBytes / 4 + 1;  // So that it is not compared.

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

inline std::string BytesOf(const torch::Tensor& tensor) {
  const torch::Tensor plain = tensor.detach().cpu().contiguous();
  return {static_cast<const char*>(plain.data_ptr()), plain.nbytes()};
}

// By name: the dtype as a file calls it, and the bytes.
inline StoredValues BuffersOf(const torch::nn::Module& module) {
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
  // Takes a step; notes what rank 0's buffers are with it. `in_body`: after the backward.
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
    return testing_support::RunTessera(cluster_->coordinator_address(), std::move(args));
  }
  // The state of the job; its step.
  int64_t Get(const std::vector<std::string>& flags, StoredValues* values) {
    const std::string path = Path("get.safetensors");
    std::vector<std::string> args = {"get", "toy", "--json", "--out", path};
    args.insert(args.end(), flags.begin(), flags.end());
    const CliResult result = Tessera(args);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    if (result.exit_code != 0) return -1;
    *values = testing_support::ReadStored(path);
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

}  // namespace tessera

#endif  // TESSERA_TESTS_INTEGRATION_LIVE_BUFFERS_FIXTURE_H_
