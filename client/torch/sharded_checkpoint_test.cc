// A sharded module with checkpointed segments, or offloaded ones, trains to the bits of the same
// one without.
#include <torch/nn/functional/loss.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/activations.h"
#include "tessera/torch/sharded_model.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr int kBlocks = 3, kSteps = 3;

// What is a segment.
enum class Segments {
  kNone,
  kUnits,
  kInsideUnits,
  kTwoUnits,
  kNested,
  kRoot,
  kOffloaded,         // Computed once; what autograd saves is offloaded.
  kOffloadedAtInput,  // Computed again from inputs that are offloaded.
};

struct MlpImpl : torch::nn::Module {
  MlpImpl() {
    linear = register_module("linear", torch::nn::Linear(8, 8));
    spare = register_parameter("spare", torch::ones({3}));  // Gets no gradient.
  }
  torch::Tensor forward(torch::Tensor x) {
    if (++calls == fail_at) throw std::runtime_error("no more activations");
    return torch::tanh(linear->forward(x));
  }
  torch::nn::Linear linear{nullptr};
  torch::Tensor spare;
  int calls = 0, fail_at = -1;
};

// A unit with a unit inside.
struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(Segments segments) : segments(segments) {
    in = register_module("in", torch::nn::Linear(8, 8));
    mlp = register_module("mlp", std::make_shared<Sharded<MlpImpl>>());
  }
  std::pair<torch::Tensor, int> forward(torch::Tensor x, int depth) {
    torch::Tensor h = segments == Segments::kInsideUnits ? Checkpoint(in, x) : in->forward(x);
    h = segments == Segments::kNested ? Checkpoint(mlp, h) : mlp->forward(h);
    return {x + h, depth + 1};
  }
  const Segments segments;
  torch::nn::Linear in{nullptr};
  std::shared_ptr<Sharded<MlpImpl>> mlp;
};
using Block = Sharded<BlockImpl>;

struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(Segments segments) : segments(segments) {
    embedding = register_parameter("embedding", torch::randn({11, 8}) * 0.3);
    for (int i = 0; i < kBlocks; ++i) {
      blocks.push_back(
          register_module(absl::StrCat("block", i), std::make_shared<Block>(segments)));
    }
  }
  torch::Tensor forward(torch::Tensor tokens) {
    torch::Tensor x = torch::embedding(embedding, tokens);
    int depth = 0;
    if (segments == Segments::kTwoUnits) {
      auto first = blocks[0], second = blocks[1];
      std::tie(x, depth) = CheckpointWith(
          {first, second},
          [=](torch::Tensor x, int depth) {
            std::tie(x, depth) = first->forward(x, depth);
            return second->forward(x, depth);
          },
          x, depth);
    }
    for (; depth < kBlocks;) {
      auto block = blocks[depth];
      std::tie(x, depth) = Run(block, x, depth);
    }
    return torch::matmul(x, embedding.t());
  }
  std::pair<torch::Tensor, int> Run(const std::shared_ptr<Block>& block, torch::Tensor x,
                                    int depth) {
    switch (segments) {
      case Segments::kUnits:
      case Segments::kNested:
        return Checkpoint(block, x, depth);
      case Segments::kOffloaded:
        return Offload(block, x, depth);
      case Segments::kOffloadedAtInput:
        return OffloadWith(
            {block}, [&block](torch::Tensor x, int depth) { return Checkpoint(block, x, depth); },
            x, depth);
      default:
        return block->forward(x, depth);
    }
  }
  const Segments segments;
  torch::Tensor embedding;
  std::vector<std::shared_ptr<Block>> blocks;
};
using Model = Sharded<ModelImpl>;

torch::Tensor Loss(const std::shared_ptr<Model>& model, int64_t step, int rank) {
  const torch::Tensor tokens = (torch::arange(20).view({4, 5}) * (step + 3) + rank * 7) % 11;
  torch::Tensor logits =
      model->segments == Segments::kRoot ? Checkpoint(model, tokens) : model->forward(tokens);
  return torch::nn::functional::cross_entropy(logits.view({-1, 11}), tokens.view({-1}));
}

using Values = std::map<std::string, torch::Tensor>;

class ShardedCheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    torch::set_num_threads(1);
    LocalCluster::Options options;
    options.num_devices = 16;  // Eight jobs of two ranks.
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }

  absl::StatusOr<std::unique_ptr<ShardedModel>> Attach(std::shared_ptr<Model> model, int rank,
                                                       int world_size, Strategy strategy) {
    SessionOptions options;
    options.coordinator_address = cluster_->coordinator_address();
    options.worker_address = cluster_->worker_address();
    options.job_id = absl::StrCat("job", static_cast<int>(model->segments));
    options.rank = rank;
    options.config.world_size = world_size;
    options.config.strategy = strategy;
    options.config.gradient_slots = 0;  // "spare" leaves units unreduced until backward ends.
    options.attach_timeout = absl::Seconds(30);
    options.operation_timeout = absl::Seconds(60);
    return ShardedModel::Attach(std::move(model), options);
  }

  std::shared_ptr<Model> MakeModel(Segments segments) {
    absl::MutexLock lock(&seed_mu_);
    torch::manual_seed(5);
    return std::make_shared<Model>(segments);
  }

  // Rank 0's parameters after kSteps steps of two ranks; `calls`: of the first MLP in a step.
  Values Train(Segments segments, Strategy strategy, int calls) {
    constexpr int kWorldSize = 2;
    Values values;
    std::vector<std::thread> trainers;
    for (int rank = 0; rank < kWorldSize; ++rank) {
      trainers.emplace_back([&, rank] {
        auto model = MakeModel(segments);
        auto sharded = Attach(model, rank, kWorldSize, strategy);
        ASSERT_OK(sharded);
        Session& session = (*sharded)->session();
        while (session.next_step() <= kSteps) {
          ASSERT_OK((*sharded)->RunStep([&] {
            torch::Tensor loss = Loss(model, session.next_step(), rank);
            ExpectWindows(session, strategy == Strategy::kShardGradOp);
            loss.backward();
            ExpectWindows(session, false);
            return (*sharded)->Step();
          }));
        }
        EXPECT_EQ(model->blocks[0]->mlp->calls, kSteps * calls);
        for (int unit = 0; unit < session.num_units(); ++unit) ASSERT_OK(session.Unshard(unit));
        if (rank != 0) return;
        for (auto& item : model->named_parameters()) {
          values[item.key()] = item.value().detach().clone();
        }
      });
    }
    for (std::thread& trainer : trainers) trainer.join();
    return values;
  }

  static void ExpectWindows(Session& session, bool open) {
    for (int unit = 1; unit < session.num_units(); ++unit) {
      EXPECT_EQ(session.unsharded(unit), open) << "unit " << unit;
    }
  }

  std::unique_ptr<LocalCluster> cluster_;
  absl::Mutex seed_mu_;  // libtorch's seed is the process's.
};

class CheckpointStrategyTest : public ShardedCheckpointTest,
                               public testing::WithParamInterface<Strategy> {};

TEST_P(CheckpointStrategyTest, TrainsToTheBitsOfTheModelWithoutSegments) {
  const Values expected = Train(Segments::kNone, GetParam(), /*calls=*/1);
  ASSERT_FALSE(expected.empty());
  const std::vector<std::pair<Segments, int>> cases = {
      {Segments::kUnits, 2},           {Segments::kInsideUnits, 1}, {Segments::kTwoUnits, 2},
      {Segments::kNested, 3},          {Segments::kRoot, 2},        {Segments::kOffloaded, 1},
      {Segments::kOffloadedAtInput, 2}};
  for (const auto& [segments, calls] : cases) {
    SCOPED_TRACE(absl::StrCat("segments ", static_cast<int>(segments)));
    const Values values = Train(segments, GetParam(), calls);
    ASSERT_EQ(values.size(), expected.size());
    for (const auto& [name, value] : values) {
      EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, CheckpointStrategyTest,
                         testing::Values(Strategy::kFullShard, Strategy::kShardGradOp));

TEST_F(ShardedCheckpointTest, ExceptionInTheRecomputationIsTheStepsErrorAndTrainingGoesOn) {
  const auto run = [&](Segments segments, bool fail) {
    auto model = MakeModel(segments);
    auto sharded = Attach(model, 0, 1, Strategy::kFullShard);
    EXPECT_OK(sharded);
    Values values;
    if (!sharded.ok()) return values;
    const auto step = [&] {
      return (*sharded)->RunStep([&] {
        Loss(model, (*sharded)->next_step(), 0).backward();
        return (*sharded)->Step();
      });
    };
    EXPECT_OK(step());
    if (fail) {
      model->blocks[1]->mlp->fail_at = model->blocks[1]->mlp->calls + 2;
      EXPECT_THAT(step(), StatusIs(absl::StatusCode::kUnknown, HasSubstr("no more activations")));
      model->blocks[1]->mlp->fail_at = -1;
    }
    EXPECT_OK(step());
    Session& session = (*sharded)->session();
    for (int unit = 0; unit < session.num_units(); ++unit) EXPECT_OK(session.Unshard(unit));
    for (auto& item : model->named_parameters()) {
      values[item.key()] = item.value().detach().clone();
    }
    return values;
  };
  const Values expected = run(Segments::kNone, false);
  for (const auto& [name, value] : run(Segments::kUnits, true)) {
    EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
  }
}

}  // namespace
}  // namespace tessera
