// Finds the tensors in what forwards take and return: a tensor, or a vector, pair, tuple or
// optional of such. Of another type that holds tensors, overload `template <class F> void
// ForEachTensor(T&, F&&)` beside the type.
//
//   ForEachTensor(result, [](torch::Tensor& tensor) { ... });
//
// Pure; as thread-safe as the values.
#ifndef TESSERA_CLIENT_TORCH_FOR_EACH_TENSOR_H_
#define TESSERA_CLIENT_TORCH_FOR_EACH_TENSOR_H_

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "client/torch/libtorch.h"

namespace tessera {

// Declared before use, so that each finds those below it.
template <typename T, typename F>
void ForEachTensor(std::vector<T>& values, F&& f);
template <typename T, typename F>
void ForEachTensor(std::optional<T>& value, F&& f);
template <typename A, typename B, typename F>
void ForEachTensor(std::pair<A, B>& values, F&& f);
template <typename... T, typename F>
void ForEachTensor(std::tuple<T...>& values, F&& f);

template <typename F>
void ForEachTensor(torch::Tensor& tensor, F&& f) {
  f(tensor);
}
template <typename F>
void ForEachTensor(const torch::Tensor& tensor, F&& f) {
  f(tensor);
}
template <typename T, typename F>
void ForEachTensor(std::vector<T>& values, F&& f) {
  for (T& value : values) ForEachTensor(value, f);
}
template <typename T, typename F>
void ForEachTensor(std::optional<T>& value, F&& f) {
  if (value.has_value()) ForEachTensor(*value, f);
}
template <typename T, typename F, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
void ForEachTensor(const T&, F&&) {}
template <typename A, typename B, typename F>
void ForEachTensor(std::pair<A, B>& values, F&& f) {
  ForEachTensor(values.first, f);
  ForEachTensor(values.second, f);
}
template <typename... T, typename F>
void ForEachTensor(std::tuple<T...>& values, F&& f) {
  std::apply([&](auto&... value) { (ForEachTensor(value, f), ...); }, values);
}

// Whether ForEachTensor knows the type.
template <typename T, typename = void>
struct HoldsTensors : std::false_type {};
template <typename T>
struct HoldsTensors<T, std::void_t<decltype(ForEachTensor(
                           std::declval<T&>(), std::declval<void (*)(const torch::Tensor&)>()))>>
    : std::true_type {};

// Casts floating-point tensors, if there is something to cast to.
class TensorCast {
 public:
  explicit TensorCast(std::optional<torch::ScalarType> to) : to_(to) {}

  bool casts() const { return to_.has_value(); }
  // The dtype of the last tensor that was cast.
  std::optional<torch::ScalarType> from() const { return from_; }

  template <typename T>
  void operator()(T& value) {
    if constexpr (HoldsTensors<T>::value) {
      ForEachTensor(value, [this](torch::Tensor& tensor) { CastTensor(tensor); });
    }
  }

 private:
  void CastTensor(torch::Tensor& tensor) {
    if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == *to_) return;
    from_ = tensor.scalar_type();
    tensor = tensor.to(*to_);
  }

  std::optional<torch::ScalarType> to_;
  std::optional<torch::ScalarType> from_;
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_FOR_EACH_TENSOR_H_
