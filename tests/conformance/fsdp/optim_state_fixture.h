// What the tests of optimizers' state dicts share.
#ifndef TESSERA_TESTS_CONFORMANCE_FSDP_OPTIM_STATE_FIXTURE_H_
#define TESSERA_TESTS_CONFORMANCE_FSDP_OPTIM_STATE_FIXTURE_H_

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tessera/torch/optim_state_dicts.h"
#include "tests/conformance/fsdp/state_dict_fixture.h"

namespace tessera::conformance {

inline std::shared_ptr<Nested> MakeNested() { return std::make_shared<Nested>(); }

// One unit of three parameters: no step uses the first, every other one uses the last.
struct SometimesImpl : torch::nn::Module {
  SometimesImpl() {
    unused = register_parameter("unused", torch::ones({5}));
    always = register_parameter("always", torch::full({3, 2}, 0.5));
    sometimes = register_parameter("sometimes", torch::full({2, 3}, 0.25));
  }
  torch::Tensor forward(int64_t step) {
    const torch::Tensor out = always.square().sum();
    return step % 2 == 1 ? out + sometimes.square().sum() : out;
  }
  torch::Tensor unused, always, sometimes;
};
using Sometimes = Sharded<SometimesImpl>;

inline std::vector<std::string> MomentsOfState(const OptimParamState& state) {
  std::vector<std::string> names;
  for (const auto& [name, entry] : state.moments) names.push_back(name);
  return names;
}

// `same` compares two tensors of one key and moment.
template <typename Same>
void CompareStates(const OptimStateDict& dict, const OptimStateDict& expected, const Same& same) {
  std::vector<std::string> keys = dict.state.keys(), expected_keys = expected.state.keys();
  std::sort(keys.begin(), keys.end());
  std::sort(expected_keys.begin(), expected_keys.end());
  ASSERT_EQ(keys, expected_keys);
  for (const auto& item : expected.state) {
    const OptimParamState& state = dict.state[item.key()];
    ASSERT_EQ(MomentsOfState(state), MomentsOfState(item.value())) << item.key();
    for (const auto& [name, entry] : item.value().moments) {
      const StateEntry& own = state.moments.at(name);
      EXPECT_EQ(own.tensor.sizes(), entry.tensor.sizes()) << item.key();
      EXPECT_EQ(own.tensor.scalar_type(), entry.tensor.scalar_type()) << item.key();
      EXPECT_TRUE(same(own.tensor, entry.tensor)) << item.key() << ", " << name;
    }
  }
}

inline void ExpectEqualState(const OptimStateDict& dict, const OptimStateDict& expected) {
  CompareStates(dict, expected, [](const auto& a, const auto& b) { return torch::equal(a, b); });
  for (const auto& item : expected.state)
    EXPECT_EQ(dict.state[item.key()].step, item.value().step) << item.key();
  EXPECT_EQ(dict.last_step, expected.last_step);
}

// libtorch's SGD counts no steps.
inline void ExpectNearState(const OptimStateDict& dict, const OptimStateDict& expected) {
  CompareStates(dict, expected,
                [](const auto& a, const auto& b) { return torch::allclose(a, b, 1e-4, 1e-7); });
  for (const auto& item : expected.state) {
    if (item.value().moments.count("exp_avg") > 0) {
      EXPECT_EQ(dict.state[item.key()].step, item.value().step) << item.key();
    }
  }
}

class OptimStateTest : public StateDictTest {
 protected:
  // Of two groups the second has the inner units' parameters.
  static void Configure(SessionOptions* options, OptimizerKind optimizer, int num_groups = 1) {
    JobConfig& config = options->config;
    config.optimizer = optimizer;
    config.groups = {ParamGroup()};
    config.groups[0].learning_rate = 0.01;
    config.groups[0].momentum = optimizer == OptimizerKind::kSgd ? 0.9 : 0;
    if (num_groups < 2) return;
    config.groups.push_back(config.groups[0]);
    config.groups[1].learning_rate = 0.02;
    config.groups[1].weight_decay = 0.1;
    config.groups[1].parameter_names = {"1.0.weight", "1.0.bias", "1.1.weight", "1.1.bias"};
  }
  static Job<Nested> AdamJob(int world_size, const WrapPolicy& policy = NestedUnits()) {
    Job<Nested> job = {MakeNested, world_size, policy};
    job.edit = [](SessionOptions* options) { Configure(options, OptimizerKind::kAdam); };
    return job;
  }
  static Job<Sometimes> SometimesJob(int world_size) {
    Job<Sometimes> job = {[] { return std::make_shared<Sometimes>(); }, world_size};
    job.edit = [](SessionOptions* options) { Configure(options, OptimizerKind::kAdam); };
    return job;
  }
  static void TrainOn(Trainer<Sometimes>& rank, int64_t step) {
    ASSERT_OK(rank.sharded->RunStep([&] {
      rank.model->forward(step).backward();
      return rank.sharded->Step();
    }));
  }
};

}  // namespace tessera::conformance

#endif  // TESSERA_TESTS_CONFORMANCE_FSDP_OPTIM_STATE_FIXTURE_H_
