// The default arguments of a module's forward(), which its type does not name: how many there are,
// a parameter that stands for one, and what torch::nn::Sequential and AnyModule are told of them.
#ifndef TESSERA_TORCH_INTERNAL_DEFAULT_ARGUMENTS_H_
#define TESSERA_TORCH_INTERNAL_DEFAULT_ARGUMENTS_H_

#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tessera/torch/libtorch.h"

namespace tessera {
namespace forward_internal {

template <typename M, typename Arguments, typename = void>
struct Takes : std::false_type {};
template <typename M, typename... A>
struct Takes<M, std::tuple<A...>,
             std::void_t<decltype(std::declval<M&>().forward(std::declval<A>()...))>>
    : std::true_type {};

template <typename Arguments, size_t... I>
std::tuple<std::tuple_element_t<I, Arguments>...> First(std::index_sequence<I...>);

// How many arguments of all must be given.
template <typename M, typename Arguments, size_t kCount = 0>
constexpr size_t NumRequired() {
  if constexpr (Takes<M, decltype(First<Arguments>(std::make_index_sequence<kCount>()))>::value) {
    return kCount;
  } else {
    return NumRequired<M, Arguments, kCount + 1>();
  }
}

// An argument that may be left out.
template <typename T>
class OrDefault {
 public:
  OrDefault() = default;
  template <typename U, typename = std::enable_if_t<std::is_convertible_v<U&&, T> &&
                                                    !std::is_same_v<std::decay_t<U>, OrDefault>>>
  OrDefault(U&& value) : value_(std::forward<U>(value)) {}  // NOLINT(google-explicit-constructor)

  bool given() const { return value_.has_value(); }
  // What {} means, where none was given.
  std::decay_t<T>& value() { return value_.has_value() ? *value_ : value_.emplace(); }

 private:
  std::optional<std::decay_t<T>> value_;
};

// What torch::nn::AnyModule asks a module with `kRequired` arguments that must be given and `D...`
// that need not, each an OrDefault<D> of its forward().
template <typename M, size_t kRequired, typename... D>
class AnyForward : public M {
 public:
  using M::M;
  using Arguments = std::vector<torch::nn::AnyValue>;
  bool _forward_has_default_args() override { return true; }
  unsigned int _forward_num_required_args() override { return kRequired; }
  Arguments _forward_populate_default_args(Arguments&& given) override {
    return Populate(std::move(given), std::index_sequence_for<D...>());
  }

 private:
  template <size_t... I>
  static Arguments Populate(Arguments&& given, std::index_sequence<I...>) {
    Arguments all;
    for (size_t i = 0; i < kRequired; ++i) all.push_back(std::move(given[i]));
    (all.push_back(Argument<D>(&given, kRequired + I)), ...);
    return all;
  }
  template <typename T>
  static torch::nn::AnyValue Argument(Arguments* given, size_t at) {
    if (at >= given->size()) return torch::nn::AnyValue(OrDefault<T>());
    return torch::nn::AnyValue(OrDefault<T>(std::move((*given)[at].get<std::decay_t<T>>())));
  }
};

}  // namespace forward_internal
}  // namespace tessera

#endif  // TESSERA_TORCH_INTERNAL_DEFAULT_ARGUMENTS_H_
