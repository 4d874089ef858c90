#include "tests/testing/byte_gpt.h"

#include <cmath>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::testing_support {
namespace {

// Places in a unit, as ByteGptModel has them.
enum RootParameter { kEmbedding, kPosition, kNorm, kNormBias };
enum BlockParameter {
  kNorm1,
  kNorm1Bias,
  kNorm2,
  kNorm2Bias,
  kQkv,
  kQkvBias,
  kProjection,
  kProjectionBias,
  kUp,
  kUpBias,
  kDown,
  kDownBias
};

ByteGptUnit ZeroesLike(const ByteGptUnit& parameters) {
  ByteGptUnit zeroes;
  for (const Floats& parameter : parameters) zeroes.emplace_back(parameter.size());
  return zeroes;
}

void Add(const Floats& a, Floats* to) {
  for (size_t i = 0; i < a.size(); ++i) (*to)[i] += a[i];
}

// The engine's numbers are the standard's; what <random> makes of them is the library's.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  double Uniform() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }  // [0, 1)
  double Normal() {
    const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
    return radius * std::cos(2 * M_PI * Uniform());
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace

ModelSpec ByteGptModel(const ByteGptConfig& config) {
  const int64_t width = config.width;
  const auto add = [](const std::string& name, std::vector<int64_t> shape, UnitSpec* unit) {
    unit->parameters.push_back({name, std::move(shape), DType::kFp32});
  };
  ModelSpec model;
  UnitSpec root = {"root", {}};
  add("embedding", {kBytes, width}, &root);
  add("position", {config.context, width}, &root);
  add("norm.weight", {width}, &root);
  add("norm.bias", {width}, &root);
  model.units.push_back(std::move(root));
  for (int64_t i = 0; i < config.blocks; ++i) {
    UnitSpec block = {absl::StrCat("block", i), {}};
    const auto add_layer = [&](const std::string& name, std::vector<int64_t> shape) {
      const int64_t out = shape[0];
      add(absl::StrCat(block.name, ".", name, ".weight"), std::move(shape), &block);
      add(absl::StrCat(block.name, ".", name, ".bias"), {out}, &block);
    };
    add_layer("norm1", {width});
    add_layer("norm2", {width});
    add_layer("qkv", {3 * width, width});
    add_layer("projection", {width, width});
    add_layer("up", {4 * width, width});
    add_layer("down", {width, 4 * width});
    model.units.push_back(std::move(block));
  }
  return model;
}

std::vector<ByteGptUnit> ByteGptInitialValues(const ByteGptConfig& config, uint64_t seed) {
  Random random(seed);
  std::vector<ByteGptUnit> units;
  for (const UnitSpec& unit : ByteGptModel(config).units) {
    ByteGptUnit& values = units.emplace_back();
    for (size_t p = 0; p < unit.parameters.size(); ++p) {
      Floats& parameter = values.emplace_back(*Numel(unit.parameters[p]));
      const bool is_root = units.size() == 1;
      if (is_root && p < kNorm) {
        for (float& value : parameter) value = static_cast<float>(0.02 * random.Normal());
      } else if (is_root || p < kQkv) {
        parameter.assign(parameter.size(), p % 2 == 0 ? 1.0f : 0.0f);
      } else {
        const auto& weight = unit.parameters[p - p % 2];  // A bias goes by its weight.
        const double bound = 1 / std::sqrt(static_cast<double>(weight.shape[1]));
        for (float& value : parameter)
          value = static_cast<float>(bound * (2 * random.Uniform() - 1));
      }
    }
  }
  return units;
}

ByteGptPass::ByteGptPass(const ByteGptConfig& config, const std::vector<uint8_t>& windows)
    : config_(config),
      shape_{static_cast<int64_t>(windows.size()) / (config.context + 1), config.context,
             config.heads, config.width},
      saved_(config.blocks) {
  for (auto window = windows.begin(); window != windows.end(); window += config.context + 1) {
    tokens_.insert(tokens_.end(), window, window + config.context);
    targets_.insert(targets_.end(), window + 1, window + config.context + 1);
  }
}

void ByteGptPass::Embed(const ByteGptUnit& root) {
  const int64_t width = config_.width;
  x_.resize(tokens_.size() * width);
  for (size_t row = 0; row < tokens_.size(); ++row) {
    const float* const embedding = &root[kEmbedding][tokens_[row] * width];
    const float* const position = &root[kPosition][row % config_.context * width];
    for (int64_t i = 0; i < width; ++i) x_[row * width + i] = embedding[i] + position[i];
  }
}

void ByteGptPass::ForwardBlock(int64_t block, const ByteGptUnit& parameters) {
  const ByteGptUnit& p = parameters;
  Saved& saved = saved_[block];
  saved.norm1 = LayerNorm(x_, p[kNorm1], p[kNorm1Bias]);
  saved.qkv = Linear(saved.norm1.y, p[kQkv], p[kQkvBias]);
  saved.mixed = Attention(shape_, saved.qkv, &saved.weights);
  Add(Linear(saved.mixed, p[kProjection], p[kProjectionBias]), &x_);
  saved.norm2 = LayerNorm(x_, p[kNorm2], p[kNorm2Bias]);
  saved.up = Linear(saved.norm2.y, p[kUp], p[kUpBias]);
  saved.gelu = Gelu(saved.up);
  Add(Linear(saved.gelu, p[kDown], p[kDownBias]), &x_);
}

double ByteGptPass::Loss(const ByteGptUnit& root) {
  const int64_t n = static_cast<int64_t>(tokens_.size()), width = config_.width;
  const Normed normed = LayerNorm(x_, root[kNorm], root[kNormBias]);
  Floats logits(n * kBytes);
  AddProduct(normed.y, Transposed(root[kEmbedding], kBytes, width), n, width, kBytes, &logits);
  const double loss = CrossEntropy(targets_, &logits);
  root_gradient_ = ZeroesLike(root);
  AddProduct(Transposed(logits, n, kBytes), normed.y, kBytes, n, width,
             &root_gradient_[kEmbedding]);
  Floats dy(x_.size());
  AddProduct(logits, root[kEmbedding], n, kBytes, width, &dy);
  x_ = LayerNormBackward(normed, root[kNorm], dy, &root_gradient_[kNorm],
                         &root_gradient_[kNormBias]);
  return loss;
}

ByteGptUnit ByteGptPass::BackwardBlock(int64_t block, const ByteGptUnit& parameters) {
  const ByteGptUnit& p = parameters;
  const Saved& saved = saved_[block];
  ByteGptUnit d = ZeroesLike(p);
  Floats of_up = LinearBackward(saved.gelu, p[kDown], x_, &d[kDown], &d[kDownBias]);
  GeluBackward(saved.up, &of_up);
  const Floats of_norm2 = LinearBackward(saved.norm2.y, p[kUp], of_up, &d[kUp], &d[kUpBias]);
  Add(LayerNormBackward(saved.norm2, p[kNorm2], of_norm2, &d[kNorm2], &d[kNorm2Bias]), &x_);
  const Floats of_mixed =
      LinearBackward(saved.mixed, p[kProjection], x_, &d[kProjection], &d[kProjectionBias]);
  const Floats of_qkv = AttentionBackward(shape_, saved.qkv, saved.weights, of_mixed);
  const Floats of_norm1 = LinearBackward(saved.norm1.y, p[kQkv], of_qkv, &d[kQkv], &d[kQkvBias]);
  Add(LayerNormBackward(saved.norm1, p[kNorm1], of_norm1, &d[kNorm1], &d[kNorm1Bias]), &x_);
  return d;
}

ByteGptUnit ByteGptPass::Finish() {
  const int64_t width = config_.width;
  for (size_t row = 0; row < tokens_.size(); ++row) {
    for (int64_t i = 0; i < width; ++i) {
      root_gradient_[kEmbedding][tokens_[row] * width + i] += x_[row * width + i];
      root_gradient_[kPosition][row % config_.context * width + i] += x_[row * width + i];
    }
  }
  return std::move(root_gradient_);
}

}  // namespace tessera::testing_support
