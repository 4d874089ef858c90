#include "tessera/initializer.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

using Kind = Initializer::Kind;

struct Fans {
  double in = 0;
  double out = 0;
};

Fans FansOf(const TensorSpec& parameter) {
  // Dimensions beyond the first two are the receptive field, as in torch.
  double receptive = 1;
  for (size_t i = 2; i < parameter.shape.size(); ++i)
    receptive *= static_cast<double>(parameter.shape[i]);
  return {static_cast<double>(parameter.shape[1]) * receptive,
          static_cast<double>(parameter.shape[0]) * receptive};
}

bool NeedsFans(Kind kind) {
  return kind != Kind::kConstant && kind != Kind::kUniform && kind != Kind::kNormal;
}

// As a distribution without fans.
Initializer Resolve(const Initializer& initializer, const TensorSpec& parameter) {
  if (!NeedsFans(initializer.kind)) return initializer;
  const Fans fans = FansOf(parameter);
  const bool xavier =
      initializer.kind == Kind::kXavierUniform || initializer.kind == Kind::kXavierNormal;
  const double deviation =
      xavier ? initializer.a * std::sqrt(2 / (fans.in + fans.out))
             : std::sqrt(2 / (1 + initializer.a * initializer.a)) / std::sqrt(fans.in);
  if (initializer.kind == Kind::kXavierNormal || initializer.kind == Kind::kKaimingNormal)
    return Initializer::Normal(0, deviation);
  const double bound = std::sqrt(3.0) * deviation;
  return Initializer::Uniform(-bound, bound);
}

// FNV-1a of the name, mixed with the seed.
uint64_t KeyOf(uint64_t seed, const std::string& name) {
  // The name decides, not the position: a parameter has the same values under any sharding.
  uint64_t hash = 0xcbf29ce484222325 ^ seed;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash ^= seed * 0x9e3779b97f4a7c15;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

// In [0, 1).
double UnitInterval(uint32_t high, uint32_t low) {
  // 53 bits, as many as a double has.
  return static_cast<double>((uint64_t{high} << 32 | low) >> 11) * 0x1p-53;
}

}  // namespace

std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  // Counter-based: element i needs no element before it, so each rank makes its slice alone.
  for (int round = 0; round < 10; ++round) {
    const uint64_t first = uint64_t{0xD2511F53} * counter[0];
    const uint64_t second = uint64_t{0xCD9E8D57} * counter[2];
    counter = {
        static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
        static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return counter;
}

absl::Status ValidateInitializer(const Initializer& initializer, const TensorSpec& parameter) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("initial values of '", parameter.name, "': ", why));
  };
  if (!std::isfinite(initializer.a) || !std::isfinite(initializer.b))
    return refuse("a number is not finite");
  if (initializer.kind == Kind::kUniform && initializer.a > initializer.b)
    return refuse("the lower bound is above the upper one");
  if (initializer.kind == Kind::kNormal && initializer.b < 0)
    return refuse("the standard deviation is negative");
  if (!NeedsFans(initializer.kind)) return absl::OkStatus();
  if (parameter.shape.size() < 2) return refuse("xavier and kaiming need two dimensions at least");
  if (std::count(parameter.shape.begin(), parameter.shape.end(), 0) > 0)
    return refuse("xavier and kaiming need some elements");
  return absl::OkStatus();
}

namespace {

template <typename Real>
void Fill(const Initializer& initializer, uint64_t seed, const TensorSpec& parameter,
          int64_t begin_elements, absl::Span<Real> values) {
  const Initializer resolved = Resolve(initializer, parameter);
  if (resolved.kind == Kind::kConstant) {
    std::fill(values.begin(), values.end(), static_cast<Real>(resolved.a));
    return;
  }
  const uint64_t hash = KeyOf(seed, parameter.name);
  const std::array<uint32_t, 2> key = {static_cast<uint32_t>(hash),
                                       static_cast<uint32_t>(hash >> 32)};
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t index = static_cast<uint64_t>(begin_elements) + i;
    const std::array<uint32_t, 4> random =
        Philox({static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), 0, 0}, key);
    const double u = UnitInterval(random[0], random[1]);
    if (resolved.kind == Kind::kUniform) {
      values[i] = static_cast<Real>(resolved.a + (resolved.b - resolved.a) * u);
      continue;
    }
    const double angle = 2 * M_PI * UnitInterval(random[2], random[3]);
    // 1 - u is never 0, so the logarithm is finite.
    values[i] = static_cast<Real>(resolved.a +
                                  resolved.b * std::sqrt(-2 * std::log(1 - u)) * std::cos(angle));
  }
}

}  // namespace

void FillSlice(const Initializer& initializer, uint64_t seed, const TensorSpec& parameter,
               int64_t begin_elements, Values values) {
  if (values.dtype() == DType::kFp64) {
    Fill(initializer, seed, parameter, begin_elements, values.as<double>());
  } else {
    Fill(initializer, seed, parameter, begin_elements, values.as<float>());
  }
}

}  // namespace tessera
