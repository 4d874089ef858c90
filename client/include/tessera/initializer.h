// Initial values that depend only on a seed, a parameter's name and an element's index: every rank
// that fills some part of a parameter, in a world of any size, fills in the same values.
//
//   value[i] = shape of the distribution (Philox4x32-10(key = (seed, name), counter = i))
//
//   kXavier*   gain * sqrt(6 / (fan_in + fan_out))  bound;  gain * sqrt(2 / (fan_in + fan_out)) std
//   kKaiming*  sqrt(2 / (1 + slope^2)) * sqrt(3 / fan_in)  bound;  ... * sqrt(1 / fan_in)  std
//
// Pure; thread-safe. Source: the formulae of torch/nn/init.py; Random123 for the generator. The
// values are not PyTorch's, whose generator depends on the order of calls.
#ifndef TESSERA_INITIALIZER_H_
#define TESSERA_INITIALIZER_H_

#include <array>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "layout/tensor_spec.h"
#include "layout/values.h"

namespace tessera {

struct Initializer {
  enum class Kind {
    kConstant,
    kUniform,
    kNormal,
    kXavierUniform,
    kXavierNormal,
    kKaimingUniform,
    kKaimingNormal,
  };
  Kind kind = Kind::kConstant;
  double a = 0;  // The constant; the lower bound; the mean; the gain; the slope of a leaky ReLU.
  double b = 0;  // The upper bound (not reached); the standard deviation.

  static Initializer Zeros() { return {}; }
  static Initializer Ones() { return {Kind::kConstant, 1, 0}; }
  static Initializer Constant(double value) { return {Kind::kConstant, value, 0}; }
  static Initializer Uniform(double low, double high) { return {Kind::kUniform, low, high}; }
  static Initializer Normal(double mean, double deviation) {
    return {Kind::kNormal, mean, deviation};
  }
  static Initializer XavierUniform(double gain = 1) { return {Kind::kXavierUniform, gain, 0}; }
  static Initializer XavierNormal(double gain = 1) { return {Kind::kXavierNormal, gain, 0}; }
  static Initializer KaimingUniform(double slope = 0) { return {Kind::kKaimingUniform, slope, 0}; }
  static Initializer KaimingNormal(double slope = 0) { return {Kind::kKaimingNormal, slope, 0}; }
};

// Errors: InvalidArgument  naming the parameter: xavier and kaiming need at least two dimensions
//                          and some elements; bounds out of order, a negative deviation, not a
//                          number.
absl::Status ValidateInitializer(const Initializer& initializer, const TensorSpec& parameter);

// Elements [begin_elements, begin_elements + values.size()) of the parameter.
// Requires ValidateInitializer to be OK.
void FillSlice(const Initializer& initializer, uint64_t seed, const TensorSpec& parameter,
               int64_t begin_elements, Values values);

// The generator: ten rounds over a counter. Exposed to be compared with its published vectors.
std::array<uint32_t, 4> Philox(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace tessera

#endif  // TESSERA_INITIALIZER_H_
