// A module sharded over ranks (threads of this process) trains as the plain module does.
#include "tessera/torch/sharded.h"

#include <ATen/record_function.h>
#include <torch/nn/functional/loss.h>

#include <set>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// A residual block with a frozen scale, returning a pair.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width)
      : in(register_module("in", torch::nn::Linear(width, 2 * width))),
        out(register_module("out", torch::nn::Linear(2 * width, width))) {
    scale = register_parameter("scale", torch::full({width}, 0.5), /*requires_grad=*/false);
    counter = register_buffer("counter", torch::zeros({1}, torch::kInt64));
  }
  std::pair<torch::Tensor, int> forward(torch::Tensor x, int depth) {
    counter += 1;
    return {x + out->forward(torch::gelu(in->forward(x * scale))), depth + 1};
  }
  torch::nn::Linear in, out;
  torch::Tensor scale, counter;
};

// Embedding tied to the output; blocks are units.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(int blocks_count) {
    embedding = register_parameter("embedding", torch::randn({11, 8}) * 0.3);
    register_parameter("head", embedding);
    for (int i = 0; i < blocks_count; ++i) {
      blocks.push_back(
          register_module(absl::StrCat("block", i), std::make_shared<Sharded<BlockImpl>>(8)));
    }
    unused = register_parameter("unused", torch::ones({3}));
  }
  torch::Tensor forward(torch::Tensor tokens) {
    torch::Tensor x = torch::embedding(embedding, tokens);
    int depth = 0;
    for (auto& block : blocks) std::tie(x, depth) = block->forward(x, depth);
    return torch::matmul(x, embedding.t());
  }
  torch::Tensor embedding, unused;
  std::vector<std::shared_ptr<Sharded<BlockImpl>>> blocks;
};

torch::Tensor Tokens(int64_t step, int rank) {
  return (torch::arange(20).view({4, 5}) * (step + 3) + rank * 7) % 11;
}

torch::Tensor Loss(Sharded<ModelImpl>& model, const torch::Tensor& tokens) {
  return torch::nn::functional::cross_entropy(model.forward(tokens).view({-1, 11}),
                                              tokens.view({-1}));
}

std::shared_ptr<Sharded<ModelImpl>> MakeModel() {
  torch::manual_seed(5);
  return std::make_shared<Sharded<ModelImpl>>(3);
}

std::map<std::string, torch::Tensor> PlainRun(int world_size, int steps) {
  auto model = MakeModel();
  std::vector<torch::Tensor> trainable;
  std::set<const void*> seen;  // libtorch lists a tied parameter under each of its names.
  for (auto& p : model->parameters()) {
    if (p.requires_grad() && seen.insert(p.unsafeGetTensorImpl()).second) trainable.push_back(p);
  }
  torch::optim::AdamW optimizer(trainable, torch::optim::AdamWOptions(0.01).weight_decay(0.1));
  for (int64_t step = 1; step <= steps; ++step) {
    optimizer.zero_grad();
    for (auto& p : trainable) p.mutable_grad().reset();  // No gradient is not a gradient of zero.
    for (int rank = 0; rank < world_size; ++rank)
      (Loss(*model, Tokens(step, rank)) / world_size).backward();
    optimizer.step();
  }
  std::map<std::string, torch::Tensor> result;
  for (auto& item : model->named_parameters()) result[item.key()] = item.value().detach().clone();
  return result;
}

class ShardedTest : public testing::Test {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    LocalCluster::Options options;
    options.num_devices = 4;
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  SessionOptions OptionsFor(int rank, int world_size) {
    SessionOptions options;
    options.coordinator_address = cluster_->coordinator_address();
    options.worker_address = cluster_->worker_address();
    options.job_id = "torch";
    options.rank = rank;
    options.config.world_size = world_size;
    options.config.groups[0].learning_rate = 0.01;
    options.config.groups[0].weight_decay = 0.1;
    options.attach_timeout = absl::Seconds(30);
    options.operation_timeout = absl::Seconds(60);
    return options;
  }
  void ForEachRank(int world_size, const std::function<void(int)>& body) {
    std::vector<std::thread> trainers;
    for (int rank = 0; rank < world_size; ++rank)
      trainers.emplace_back([&body, rank] { body(rank); });
    for (std::thread& trainer : trainers) trainer.join();
  }
  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex seed_mu_;  // libtorch's seed is the process's.
};

// As torch's profiler has them.
class UserRanges {
 public:
  UserRanges() {
    names_ = &own_names_;
    at::RecordFunctionCallback begin([](const at::RecordFunction& range) {
      absl::MutexLock lock(&mu_);
      names_->insert(range.name());
      return std::unique_ptr<at::ObserverContext>();
    });
    handle_ = at::addGlobalCallback(begin.scopes({at::RecordScope::USER_SCOPE}));
  }
  ~UserRanges() { at::removeCallback(handle_); }
  std::set<std::string> names() const {
    absl::MutexLock lock(&mu_);
    return own_names_;
  }

 private:
  // The callback is a plain function.
  inline static absl::Mutex mu_;
  inline static std::set<std::string>* names_ = nullptr;
  std::set<std::string> own_names_;
  at::CallbackHandle handle_;
};

TEST_F(ShardedTest, ProfilersSeeWhatIsDoneForEachUnit) {
  const UserRanges ranges;
  ForEachRank(1, [&](int rank) {
    const std::shared_ptr<Sharded<ModelImpl>> model = MakeModel();
    auto sharded = ShardedModel::Attach(model, OptionsFor(rank, 1));
    ASSERT_OK(sharded);
    ASSERT_OK((*sharded)->RunStep([&] {
      Loss(*model, Tokens(1, rank)).backward();
      return (*sharded)->Step();
    }));
  });
  for (const char* name : {"tessera::pre_forward (root)", "tessera::pre_forward (block1)",
                           "tessera::post_forward (block1)", "tessera::pre_backward (block1)",
                           "tessera::post_backward (block1)", "tessera::step (all units)"}) {
    EXPECT_EQ(ranges.names().count(name), 1) << name;
  }
}

class StrategyTest : public ShardedTest, public testing::WithParamInterface<Strategy> {};

TEST_P(StrategyTest, TrainsAsThePlainModuleDoes) {
  constexpr int kWorldSize = 3, kSteps = 4;
  const auto expected = PlainRun(kWorldSize, kSteps);
  ForEachRank(kWorldSize, [&](int rank) {
    std::shared_ptr<Sharded<ModelImpl>> model;
    {
      absl::MutexLock lock(&seed_mu_);
      model = MakeModel();
    }
    SessionOptions options = OptionsFor(rank, kWorldSize);
    options.config.strategy = GetParam();
    auto sharded = ShardedModel::Attach(model, options);
    ASSERT_OK(sharded);
    while ((*sharded)->next_step() <= kSteps) {
      ASSERT_OK((*sharded)->RunStep([&] {
        Loss(*model, Tokens((*sharded)->next_step(), rank)).backward();
        return (*sharded)->Step();
      }));
    }
    Session& session = (*sharded)->session();
    for (int unit = 0; unit < session.num_units(); ++unit) ASSERT_OK(session.Unshard(unit));
    std::vector<std::string> names;
    for (auto& item : model->named_parameters()) {
      names.push_back(item.key());
      EXPECT_LT((item.value() - expected.at(item.key())).abs().max().item<float>(), 2e-6f)
          << item.key();
    }
    EXPECT_THAT(names, testing::Contains("block1.in.weight"))
        << "names are those of the plain module";
    EXPECT_EQ(model->blocks[0]->counter.item<int64_t>(), kSteps) << "buffers stay the trainer's";
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, StrategyTest,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGradOp,
                                         Strategy::kNoShard));

// Where a rank's own code throws: before, in and after forward, and in backward.
TEST_F(ShardedTest, ExceptionOnOneRankIsEveryRanksErrorAndTrainingGoesOn) {
  constexpr int kWorldSize = 2, kSteps = 6;
  const auto expected = PlainRun(kWorldSize, kSteps);
  ForEachRank(kWorldSize, [&](int rank) {
    std::shared_ptr<Sharded<ModelImpl>> model;
    {
      absl::MutexLock lock(&seed_mu_);
      model = MakeModel();
    }
    auto sharded = ShardedModel::Attach(model, OptionsFor(rank, kWorldSize));
    ASSERT_OK(sharded);
    const auto mismatch = [] { torch::matmul(torch::ones({2, 3}), torch::ones({2, 3})); };
    bool may_fail = true;
    while ((*sharded)->next_step() <= kSteps) {
      const int64_t step = (*sharded)->next_step();
      const bool fails = may_fail && step >= 2 && step <= 5;
      const absl::Status status = (*sharded)->RunStep([&] {
        const bool mine = fails && rank == 1;
        if (mine && step == 2) mismatch();
        torch::Tensor tokens = Tokens(step, rank);
        if (mine && step == 3) tokens = tokens + 100;  // No row of the embedding.
        torch::Tensor loss = Loss(*model, tokens);
        if (mine && step == 4) loss.register_hook([&](const torch::Tensor&) { mismatch(); });
        loss.backward();
        if (mine && step == 5) mismatch();
        return (*sharded)->Step();
      });
      may_fail = !fails;
      if (!fails) {
        ASSERT_OK(status);
        continue;
      }
      const std::string cause = step == 3 ? "index out of range" : "cannot be multiplied";
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnknown, HasSubstr(cause)));
      if (rank == 0) {
        EXPECT_THAT(std::string(status.message()), testing::StartsWith("rank 1: "));
      }
      EXPECT_EQ((*sharded)->next_step(), step) << "the step was undone";
    }
    Session& session = (*sharded)->session();
    for (int unit = 0; unit < session.num_units(); ++unit) ASSERT_OK(session.Unshard(unit));
    for (auto& item : model->named_parameters()) {
      EXPECT_LT((item.value() - expected.at(item.key())).abs().max().item<float>(), 2e-6f)
          << item.key();
    }
  });
}

TEST_F(ShardedTest, UnitsThatAPolicyChoosesTrainAsThePlainModuleDoes) {  // WRAP-3, WRAP-10
  constexpr int kWorldSize = 2, kSteps = 3;
  const auto expected = PlainRun(kWorldSize, kSteps);
  ForEachRank(kWorldSize, [&](int rank) {
    std::shared_ptr<Sharded<ModelImpl>> model;
    {
      absl::MutexLock lock(&seed_mu_);
      model = MakeModel();
    }
    auto sharded = ShardedModel::Attach(
        model, OptionsFor(rank, kWorldSize),
        WrapIf([](const WrapCandidate& candidate) { return candidate.name == "block1"; }));
    ASSERT_OK(sharded);
    ASSERT_EQ((*sharded)->session().num_units(), 2);
    EXPECT_TRUE(model->blocks[1]->attached());
    EXPECT_FALSE(model->blocks[0]->attached()) << "not chosen, so it is a plain module";
    while ((*sharded)->next_step() <= kSteps) {
      ASSERT_OK((*sharded)->RunStep([&] {
        Loss(*model, Tokens((*sharded)->next_step(), rank)).backward();
        return (*sharded)->Step();
      }));
    }
    for (int unit = 0; unit < 2; ++unit) ASSERT_OK((*sharded)->session().Unshard(unit));
    for (auto& item : model->named_parameters()) {
      EXPECT_LT((item.value() - expected.at(item.key())).abs().max().item<float>(), 2e-6f)
          << item.key();
    }
  });
}

TEST_F(ShardedTest, ModuleThatIsAttachedAlreadyIsRefusedByName) {  // WRAP-1
  auto model = MakeModel();
  auto sharded = ShardedModel::Attach(model, OptionsFor(0, 1));
  ASSERT_OK(sharded);
  EXPECT_THAT(ShardedModel::Attach(model, OptionsFor(0, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the root is attached")));
  struct Outer : torch::nn::Module {
    void forward() {}
  };
  auto outer = std::make_shared<Sharded<Outer>>();
  outer->register_module("inner", model->blocks[2]);
  EXPECT_THAT(ShardedModel::Attach(outer, OptionsFor(0, 1)),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'inner' is attached")));
}

TEST_F(ShardedTest, NoSyncAccumulatesWithoutReducing) {
  constexpr int kWorldSize = 2;
  ForEachRank(kWorldSize, [&](int rank) {
    std::shared_ptr<Sharded<ModelImpl>> model;
    {
      absl::MutexLock lock(&seed_mu_);
      model = MakeModel();
    }
    SessionOptions options = OptionsFor(rank, kWorldSize);
    options.config.gradient_slots = 0;
    options.config.optimizer = OptimizerKind::kSgd;
    auto sharded = ShardedModel::Attach(model, options);
    ASSERT_OK(sharded);
    double accumulated = 0, at_once = 0;
    ASSERT_OK((*sharded)->RunStep([&] {
      {
        ShardedModel::NoSync no_sync(sharded->get());
        (Loss(*model, Tokens(1, rank)) / 2).backward();
      }
      (Loss(*model, Tokens(1, rank)) / 2).backward();
      auto result = (*sharded)->StepWithResult(0.0);
      if (result.ok()) accumulated = result->gradient_norm;
      return result.status();
    }));
    ASSERT_OK((*sharded)->RunStep([&] {
      Loss(*model, Tokens(1, rank)).backward();
      auto result = (*sharded)->StepWithResult(0.0);
      if (result.ok()) at_once = result->gradient_norm;
      return result.status();
    }));
    EXPECT_GT(at_once, 0);
    EXPECT_NEAR(accumulated, at_once, 1e-5 * at_once);
  });
}

TEST_F(ShardedTest, UseOutsideItsWindowNamesTheParameter) {
  // In a child, since the first touch ends the process.
  auto model = MakeModel();
  auto sharded = ShardedModel::Attach(model, OptionsFor(0, 1));
  ASSERT_OK(sharded);
  EXPECT_EXIT({ (void)model->blocks[1]->out->weight.sum().item<float>(); },
              testing::KilledBySignal(SIGSEGV),
              "parameter 'block1.out.weight' of unit 'block1' was used while the unit is sharded");
}

struct TiedAcross : torch::nn::Module {
  TiedAcross() {
    weight = register_parameter("weight", torch::ones({8}));
    block = register_module("block", std::make_shared<Sharded<BlockImpl>>(8));
    block->register_parameter("tied", weight);
  }
  void forward() {}
  torch::Tensor weight;
  std::shared_ptr<Sharded<BlockImpl>> block;
};

TEST_F(ShardedTest, ParameterInTwoUnitsIsRefusedWithBothNames) {
  EXPECT_THAT(ShardedModel::Attach(std::make_shared<Sharded<TiedAcross>>(), OptionsFor(0, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       testing::AllOf(HasSubstr("block.tied"), HasSubstr("'weight'"),
                                      HasSubstr("'root'"))));
}

TEST_F(ShardedTest, PlainRootIsRefused) {
  EXPECT_THAT(ShardedModel::Attach(std::make_shared<BlockImpl>(8), OptionsFor(0, 1)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a tessera::Sharded")));
}

}  // namespace
}  // namespace tessera
