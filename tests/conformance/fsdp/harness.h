// Trains a model on ranks of a cluster in this process, and for comparison the same class
// unattached on the same data, and reads what the ranks' flight recorders saw.
#ifndef TESSERA_TESTS_CONFORMANCE_FSDP_HARNESS_H_
#define TESSERA_TESTS_CONFORMANCE_FSDP_HARNESS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/sharded_model.h"

namespace tessera::conformance {

using Tensors = std::map<std::string, torch::Tensor>;

// Copies of the parameters by name.
Tensors CopyOf(const torch::nn::Module& module);
void ExpectNear(const Tensors& values, const Tensors& expected, double tolerance);
// As the job's optimizer, of all parameters, each once.
std::unique_ptr<torch::optim::Optimizer> PlainOptimizer(torch::nn::Module& module,
                                                        const JobConfig& config);
void ForgetGradients(torch::nn::Module& module);

class ConformanceTest : public testing::Test {
 protected:
  void SetUp() override;
  // A job of its own; SGD with momentum.
  SessionOptions Options(int world_size);
  static void ForEachRank(int world_size, const std::function<void(int rank)>& body);
  // The whole parameters in fp32; collective.
  static Tensors WholeParameters(ShardedModel* model, const torch::nn::Module& module);
  // What the rank did in a step, in order: "unshard 1.0", "reduce root 160" (bytes), "step".
  std::vector<std::string> Operations(const std::string& job_id, int rank, int64_t step) const;
  // How many of them begin so.
  static int Count(const std::vector<std::string>& operations, const std::string& beginning);

  std::unique_ptr<LocalCluster> cluster_;
  int num_jobs_ = 0;
};

template <typename M>
using Loss = std::function<torch::Tensor(M& model, int64_t step, int rank)>;

// The model's LossOf, where it has one.
template <typename M, typename = void>
struct DefaultLoss {
  static Loss<M> Get() { return nullptr; }
};
template <typename M>
struct DefaultLoss<M, std::void_t<decltype(LossOf(std::declval<M&>(), int64_t{}, int{}))>> {
  static Loss<M> Get() {
    return [](M& model, int64_t step, int rank) { return LossOf(model, step, rank); };
  }
};

// How a training differs from the plain one.
template <typename M>
struct Training {
  std::function<std::shared_ptr<M>()> make;
  Loss<M> loss = DefaultLoss<M>::Get();
  int64_t steps = 3;
  WrapPolicy policy = AlwaysWrap();
  AttachOptions attach;
  // Of the model and of the plain one, before each step.
  std::function<void(M& model, int64_t step)> before_step;
  double tolerance = 3e-6;
};

// The losses by rank and step, and the parameters at the end.
struct Outcome {
  std::vector<std::vector<double>> losses;
  Tensors parameters;
};

template <typename M>
Outcome TrainPlain(const Training<M>& training, const JobConfig& config) {
  Outcome outcome;
  outcome.losses.resize(config.world_size);
  std::shared_ptr<M> model = training.make();
  const auto optimizer = PlainOptimizer(*model, config);
  for (int64_t step = 1; step <= training.steps; ++step) {
    if (training.before_step) training.before_step(*model, step);
    ForgetGradients(*model);
    for (int rank = 0; rank < config.world_size; ++rank) {
      const torch::Tensor loss = training.loss(*model, step, rank);
      outcome.losses[rank].push_back(loss.template item<double>());
      (loss / config.world_size).backward();
    }
    optimizer->step();
  }
  outcome.parameters = CopyOf(*model);
  return outcome;
}

// On one rank. `after_step` looks at the model between steps.
template <typename M>
void TrainSharded(const Training<M>& training, SessionOptions options, const Outcome& expected,
                  const std::function<void(M&, ShardedModel&, int64_t)>& after_step = nullptr) {
  std::shared_ptr<M> model = training.make();
  ASSERT_OK_AND_ASSIGN(auto sharded,
                       ShardedModel::Attach(model, options, training.policy, training.attach));
  for (int64_t step = 1; step <= training.steps; ++step) {
    if (training.before_step) training.before_step(*model, step);
    ASSERT_OK(sharded->RunStep([&] {
      const torch::Tensor loss = training.loss(*model, step, options.rank);
      EXPECT_NEAR(loss.template item<double>(), expected.losses[options.rank][step - 1],
                  training.tolerance * 10)
          << "loss of rank " << options.rank << ", step " << step;
      loss.backward();
      return sharded->Step();
    }));
    if (after_step) after_step(*model, *sharded, step);
  }
  Tensors whole;
  SummonOptions summon;
  summon.writeback = false;
  ASSERT_OK(sharded->SummonFullParams(summon, [&] {
    whole = CopyOf(*model);
    return absl::OkStatus();
  }));
  ExpectNear(whole, expected.parameters, training.tolerance);
}

}  // namespace tessera::conformance

#endif  // TESSERA_TESTS_CONFORMANCE_FSDP_HARNESS_H_
