// Finds the tensors in what forwards take and return: a tensor; a packed sequence; a pair, tuple,
// optional, variant, array, vector, map, torch::OrderedDict, c10::List, c10::Dict or other
// container of what holds tensors; a struct that names its tensors:
//
//   struct Output {
//     torch::Tensor logits;
//     std::vector<torch::Tensor> states;
//     auto tensors() { return std::tie(logits, states); }
//   };
//
// or, of a type that cannot be changed, `template <class F> void ForEachTensor(T&, F&&)` next to
// it. Pointers, views (torch::TensorList) and torch::IValue are not followed.
//
//   VisitTensors(result, [](torch::Tensor& tensor) { ... });
//
// Pure; as thread-safe as the values.
#ifndef TESSERA_TORCH_FOR_EACH_TENSOR_H_
#define TESSERA_TORCH_FOR_EACH_TENSOR_H_

#include <iterator>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>

#include "tessera/torch/libtorch.h"

namespace tessera {

// Whether a T holds tensors, kAny, and how they are found. Of a type that is not known: none.
template <typename T, typename = void>
struct TensorsIn {
  static constexpr bool kAny = false;
};

template <typename T>
using HoldsTensors = std::bool_constant<TensorsIn<T>::kAny>;

template <typename T, typename F>
void VisitTensors(T& value, F&& f) {
  if constexpr (HoldsTensors<T>::value) TensorsIn<T>::Visit(value, f);
}

namespace tensors_internal {

template <typename T>
using Element = std::remove_reference_t<decltype(*std::begin(std::declval<T&>()))>;

template <typename T, typename = void>
struct IsContainer : std::false_type {};
// A path is a container of paths.
template <typename T>
struct IsContainer<T, std::void_t<typename T::value_type, Element<T>>>
    : std::bool_constant<!std::is_same_v<Element<T>, T>> {};

// Those with an interface of their own.
template <typename T>
struct IsOfTorch : std::false_type {};
template <typename K, typename V>
struct IsOfTorch<torch::OrderedDict<K, V>> : std::true_type {};
template <typename T>
struct IsOfTorch<c10::List<T>> : std::true_type {};
template <typename K, typename V>
struct IsOfTorch<c10::Dict<K, V>> : std::true_type {};

// torch::nn::utils::rnn::PackedSequence, whose header is not needed for it.
template <typename T, typename = void>
struct IsPackedSequence : std::false_type {};
template <typename T>
struct IsPackedSequence<T, std::void_t<decltype(std::declval<T&>().batch_sizes()),
                                       decltype(std::declval<T&>().sorted_indices()),
                                       decltype(std::declval<T&>().unsorted_indices())>>
    : std::is_same<decltype(std::declval<T&>().data()), const torch::Tensor&> {};

template <typename T, typename = void>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<T, std::void_t<typename T::value_type, decltype(std::declval<T&>().has_value()),
                                 decltype(*std::declval<T&>())>> : std::true_type {};

// References, as std::tie makes them.
template <typename T>
struct IsTie : std::false_type {};
template <typename... T>
struct IsTie<std::tuple<T&...>> : std::true_type {};

template <typename T, typename = void>
struct NamesTensors : std::false_type {};
template <typename T>
struct NamesTensors<T, std::void_t<decltype(std::declval<T&>().tensors())>>
    : IsTie<decltype(std::declval<T&>().tensors())> {};

template <typename T, typename = void>
struct IsOverloaded : std::false_type {};
template <typename T>
struct IsOverloaded<T, std::void_t<decltype(ForEachTensor(
                           std::declval<T&>(), std::declval<void (*)(torch::Tensor&)>()))>>
    : std::true_type {};

}  // namespace tensors_internal

template <>
struct TensorsIn<torch::Tensor> {
  static constexpr bool kAny = true;
  template <typename F>
  static void Visit(torch::Tensor& tensor, F&& f) {
    f(tensor);
  }
};

template <typename A, typename B>
struct TensorsIn<std::pair<A, B>> {
  static constexpr bool kAny = TensorsIn<A>::kAny || TensorsIn<B>::kAny;
  template <typename F>
  static void Visit(std::pair<A, B>& values, F&& f) {
    VisitTensors(values.first, f);
    VisitTensors(values.second, f);
  }
};

template <typename... T>
struct TensorsIn<std::tuple<T...>> {
  static constexpr bool kAny = (TensorsIn<std::remove_reference_t<T>>::kAny || ...);
  template <typename F>
  static void Visit(std::tuple<T...>& values, F&& f) {
    std::apply([&](auto&... value) { (VisitTensors(value, f), ...); }, values);
  }
};

template <typename T>
struct TensorsIn<T, std::enable_if_t<tensors_internal::IsContainer<T>::value &&
                                     !tensors_internal::IsOfTorch<T>::value>> {
  static constexpr bool kAny = TensorsIn<tensors_internal::Element<T>>::kAny;
  template <typename F>
  static void Visit(T& values, F&& f) {
    for (auto& value : values) VisitTensors(value, f);
  }
};

template <typename K, typename V>
struct TensorsIn<torch::OrderedDict<K, V>> {
  static constexpr bool kAny = TensorsIn<V>::kAny;
  template <typename F>
  static void Visit(torch::OrderedDict<K, V>& values, F&& f) {
    for (auto& item : values) VisitTensors(item.value(), f);
  }
};

// Copies of a c10::List or c10::Dict share its elements: what is visited gets its own.
template <typename T>
struct TensorsIn<c10::List<T>> {
  static constexpr bool kAny = TensorsIn<T>::kAny;
  template <typename F>
  static void Visit(c10::List<T>& values, F&& f) {
    values = values.copy();
    for (size_t i = 0; i < values.size(); ++i) {
      T value = values.get(i);
      VisitTensors(value, f);
      values.set(i, std::move(value));
    }
  }
};

template <typename K, typename V>
struct TensorsIn<c10::Dict<K, V>> {
  static constexpr bool kAny = TensorsIn<V>::kAny;
  template <typename F>
  static void Visit(c10::Dict<K, V>& values, F&& f) {
    values = values.copy();
    for (auto& entry : values) {
      V value = entry.value();
      VisitTensors(value, f);
      entry.setValue(std::move(value));
    }
  }
};

template <typename... T>
struct TensorsIn<std::variant<T...>> {
  static constexpr bool kAny = (TensorsIn<T>::kAny || ...);
  template <typename F>
  static void Visit(std::variant<T...>& values, F&& f) {
    std::visit([&](auto& value) { VisitTensors(value, f); }, values);
  }
};

template <typename T>
struct TensorsIn<T, std::enable_if_t<tensors_internal::IsPackedSequence<T>::value>> {
  static constexpr bool kAny = true;
  template <typename F>
  static void Visit(T& sequence, F&& f) {
    torch::Tensor data = sequence.data();
    f(data);
    sequence =
        T(data, sequence.batch_sizes(), sequence.sorted_indices(), sequence.unsorted_indices());
  }
};

template <typename T>
struct TensorsIn<T, std::enable_if_t<tensors_internal::IsOptional<T>::value>> {
  static constexpr bool kAny = TensorsIn<typename T::value_type>::kAny;
  template <typename F>
  static void Visit(T& value, F&& f) {
    if (value.has_value()) VisitTensors(*value, f);
  }
};

template <typename T>
struct TensorsIn<T, std::enable_if_t<tensors_internal::NamesTensors<T>::value>> {
  static constexpr bool kAny = true;
  template <typename F>
  static void Visit(T& value, F&& f) {
    auto named = value.tensors();
    VisitTensors(named, f);
  }
};

template <typename T>
struct TensorsIn<T, std::enable_if_t<tensors_internal::IsOverloaded<T>::value>> {
  static constexpr bool kAny = true;
  template <typename F>
  static void Visit(T& value, F&& f) {
    ForEachTensor(value, f);
  }
};

}  // namespace tessera

#endif  // TESSERA_TORCH_FOR_EACH_TENSOR_H_
