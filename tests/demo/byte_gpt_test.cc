// Compares the model without libtorch with the demo's own: both have the same initial values and
// windows.
#include "tests/testing/byte_gpt.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tessera/torch/libtorch.h"
#include "tests/demo/gpt.h"

namespace tessera::demo {
namespace {

using testing_support::ByteGptConfig;
using testing_support::ByteGptInitialValues;
using testing_support::ByteGptModel;
using testing_support::ByteGptPass;
using testing_support::ByteGptUnit;

struct Case {
  uint64_t seed;
  ByteGptConfig config;
  int batch = 1;
  float sharpen = 1;  // Times the weights of qkv: attention is next to even where they are small.
};

class ByteGptTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    units_ = ByteGptInitialValues(GetParam().config, GetParam().seed);
    spec_ = ByteGptModel(GetParam().config);
    for (size_t u = 0; u < units_.size(); ++u) {
      for (size_t p = 0; p < units_[u].size(); ++p) {
        const std::string& name = spec_.units[u].parameters[p].name;
        for (float& value : units_[u][p]) {
          if (name.find("qkv.weight") != std::string::npos) value *= GetParam().sharpen;
          // So that no gain is 1 and no bias 0, which would hide a factor that is forgotten.
          if (name.find("norm") != std::string::npos) value += 0.1f * std::sin(jitter_ += 1);
        }
      }
    }
    std::mt19937_64 random(GetParam().seed);
    windows_.resize(GetParam().batch * (GetParam().config.context + 1));
    for (uint8_t& byte : windows_) byte = static_cast<uint8_t>(random() % 256);
  }
  // The demo's model with the same values.
  std::shared_ptr<Gpt> MakeTorchGpt() {
    const ByteGptConfig& config = GetParam().config;
    GptConfig torch_config;
    torch_config.width = config.width;
    torch_config.heads = config.heads;
    torch_config.blocks = config.blocks;
    torch_config.context = config.context;
    auto model = MakeGpt(torch_config, /*seed=*/1);
    torch::NoGradGuard no_grad;
    std::map<std::string, torch::Tensor> by_name;
    for (const auto& item : model->named_parameters()) by_name[item.key()] = item.value();
    EXPECT_EQ(by_name.erase("output"), 1u) << "which is the embedding";
    for (size_t u = 0; u < units_.size(); ++u) {
      for (size_t p = 0; p < units_[u].size(); ++p) {
        const TensorSpec& spec = spec_.units[u].parameters[p];
        const torch::Tensor parameter = by_name[spec.name];
        EXPECT_EQ(parameter.sizes().vec(), spec.shape) << spec.name;
        parameter.copy_(torch::from_blob(units_[u][p].data(), spec.shape));
        by_name.erase(spec.name);
      }
    }
    EXPECT_TRUE(by_name.empty()) << by_name.begin()->first;
    return model;
  }

  std::vector<ByteGptUnit> units_;
  ModelSpec spec_;
  std::vector<uint8_t> windows_;
  float jitter_ = 0;
};

TEST_P(ByteGptTest, LossAndEveryGradientAreThoseOfTheDemosModel) {
  const ByteGptConfig& config = GetParam().config;
  ByteGptPass pass(config, windows_);
  pass.Embed(units_[0]);
  for (int64_t i = 0; i < config.blocks; ++i) pass.ForwardBlock(i, units_[1 + i]);
  const double loss = pass.Loss(units_[0]);
  std::vector<ByteGptUnit> gradients(units_.size());
  for (int64_t i = config.blocks; i-- > 0;) gradients[1 + i] = pass.BackwardBlock(i, units_[1 + i]);
  gradients[0] = pass.Finish();

  const auto model = MakeTorchGpt();
  torch::Tensor bytes =
      torch::from_blob(windows_.data(), {GetParam().batch, config.context + 1}, torch::kUInt8)
          .to(torch::kInt64);
  const torch::Tensor torch_loss = NextByteLoss(*model, bytes);
  torch_loss.backward();
  EXPECT_NEAR(loss, torch_loss.item<double>(), 1e-5 * loss);
  std::map<std::string, torch::Tensor> by_name;
  for (const auto& item : model->named_parameters()) by_name[item.key()] = item.value().grad();
  for (size_t u = 0; u < units_.size(); ++u) {
    for (size_t p = 0; p < units_[u].size(); ++p) {
      const TensorSpec& spec = spec_.units[u].parameters[p];
      const torch::Tensor expected = by_name[spec.name];
      const torch::Tensor own = torch::from_blob(gradients[u][p].data(), spec.shape);
      const double largest = expected.abs().max().item<double>();
      EXPECT_GT(largest, 1e-6) << spec.name << " has no gradient that could be compared";
      EXPECT_LT((own - expected).abs().max().item<double>(), 2e-4 * largest) << spec.name;
    }
  }
}

// That the initial values are distributed alike, and another seed's are others.
TEST(ByteGptValuesTest, InitialValuesAreDistributedAsTheDemos) {
  const ByteGptConfig config;
  const auto units = ByteGptInitialValues(config, 1);
  EXPECT_EQ(units, ByteGptInitialValues(config, 1));
  EXPECT_NE(units, ByteGptInitialValues(config, 2));
  GptConfig torch_config;
  torch_config.width = config.width;
  torch_config.blocks = config.blocks;
  torch_config.context = config.context;
  const auto model = MakeGpt(torch_config, 1);
  std::map<std::string, torch::Tensor> by_name;
  for (const auto& item : model->named_parameters()) by_name[item.key()] = item.value().detach();
  const ModelSpec spec = ByteGptModel(config);
  for (size_t u = 0; u < units.size(); ++u) {
    for (size_t p = 0; p < units[u].size(); ++p) {
      const std::string& name = spec.units[u].parameters[p].name;
      const torch::Tensor expected = by_name[name];
      const torch::Tensor own = torch::tensor(units[u][p]);
      // Of 64 values and more: the deviation of a sample's is a twelfth of it at most.
      const double deviation = expected.std().item<double>();
      EXPECT_NEAR(own.std().item<double>(), deviation, 0.4 * deviation) << name;
      EXPECT_NEAR(own.mean().item<double>(), expected.mean().item<double>(), 0.75 * deviation)
          << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ByteGptTest,
                         testing::Values(Case{1, ByteGptConfig(), 2},
                                         Case{2, ByteGptConfig(), 2, 4},
                                         Case{3, ByteGptConfig{24, 3, 1, 7}, 3, 4},
                                         Case{4, ByteGptConfig{32, 1, 3, 16}, 1, 4},
                                         Case{5, ByteGptConfig{48, 12, 2, 1}, 5, 4}),
                         [](const testing::TestParamInfo<Case>& info) {
                           return "Seed" + std::to_string(info.param.seed);
                         });

}  // namespace
}  // namespace tessera::demo
