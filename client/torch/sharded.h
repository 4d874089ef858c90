// Makes a libtorch module a unit of sharded training, whatever its forward looks like.
//
//   struct BlockImpl : torch::nn::Module { torch::Tensor forward(torch::Tensor x); ... };
//   using Block = tessera::Sharded<BlockImpl>;      // instead of BlockImpl, nothing else changes
//   blocks->push_back(std::make_shared<Block>(config));
//
// Sharded<M> *is* an M: parameters and buffers keep their names, and until a ShardedModel attaches
// it as a unit (see sharded_model.h) it behaves as M does, so the same model trains unsharded too.
// Units nest.
// Attached, forward() makes the unit's parameters readable around M::forward, and again around
// backward through what it returned.
//
// The result may be a tensor, or a vector, pair, tuple or optional of results; of another type
// that holds tensors, overload `template <class F> void ForEachTensor(T&, F&&)` beside the type.
// Confined to the thread that trains. forward() throws StatusException where the session fails,
// since M::forward has no way to return a status. Arguments may be cast (mixed_precision.h): then
// M::forward gets copies of those that hold tensors.
#ifndef TESSERA_CLIENT_TORCH_SHARDED_H_
#define TESSERA_CLIENT_TORCH_SHARDED_H_

#include <torch/torch.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace tessera {

// What crosses libtorch, which speaks exceptions. ShardedModel::RunStep turns it back.
class StatusException : public std::runtime_error {
 public:
  explicit StatusException(absl::Status status)
      : std::runtime_error(status.ToString()), status_(std::move(status)) {}
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
};

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

// What a ShardedModel does around a unit's forward. All throw StatusException.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  virtual void PreForward(int unit) = 0;
  // What the unit's floating-point arguments are cast to, if anything, and whether its result is
  // cast back.
  virtual std::optional<torch::ScalarType> InputDType(int unit) = 0;
  virtual bool CastsResultBack(int unit) = 0;
  // For each tensor argument, before the forward.
  virtual void WatchInput(int unit, const torch::Tensor& input) = 0;
  // For each tensor of the result.
  virtual void WatchOutput(int unit, const torch::Tensor& output) = 0;
  virtual void PostForward(int unit) = 0;
  // Runs `body` with the whole parameters of the units at and below `module`, and writes back.
  virtual void WithFullParameters(const torch::nn::Module& module,
                                  const std::function<void()>& body) = 0;
};

// The part of Sharded<M> that does not depend on M; how a ShardedModel finds units.
class ShardedBase {
 public:
  virtual ~ShardedBase() = default;
  // `observer` outlives the attachment; null detaches.
  void AttachUnit(UnitObserver* observer, int unit) {
    observer_ = observer;
    unit_ = unit;
  }
  bool attached() const { return observer_ != nullptr; }

 protected:
  UnitObserver* observer_ = nullptr;
  int unit_ = -1;
};

template <typename M>
class Sharded : public M, public ShardedBase {
 public:
  using M::M;

  // As M::apply. Attached, `function` sees whole parameters, and what it sets is set on all ranks
  // or on none (see summon_full_params.h): collective, and not within a step.
  using M::apply;
  void apply(const std::function<void(torch::nn::Module&)>& function) {
    if (observer_ == nullptr) return M::apply(function);
    observer_->WithFullParameters(*this, [&] { M::apply(function); });
  }

  template <typename... Args>
  auto forward(Args&&... args) {
    if (observer_ == nullptr) return M::forward(std::forward<Args>(args)...);
    observer_->PreForward(unit_);
    TensorCast cast(observer_->InputDType(unit_));
    if (!cast.casts()) return Watched(std::nullopt, std::forward<Args>(args)...);
    std::tuple<Held<Args>...> held(std::forward<Args>(args)...);
    return std::apply(
        [&](auto&... values) {
          (Cast(values, &cast), ...);
          return Watched(observer_->CastsResultBack(unit_) ? cast.from() : std::nullopt,
                         static_cast<Args&&>(values)...);
        },
        held);
  }

 private:
  // What is cast is copied, so that the caller's stays as it is; other arguments are passed on.
  template <typename T>
  static constexpr bool kIsCast =
      HoldsTensors<std::decay_t<T>>::value && !std::is_arithmetic_v<std::decay_t<T>> &&
      std::is_copy_constructible_v<std::decay_t<T>>;
  template <typename T>
  using Held = std::conditional_t<kIsCast<T>, std::decay_t<T>, T&&>;

  template <typename T>
  static void Cast(T& value, TensorCast* cast) {
    if constexpr (kIsCast<T> && !std::is_const_v<T>) (*cast)(value);
  }

  // Around M::forward; the result goes back to `back`, if that is given.
  template <typename... Args>
  auto Watched(std::optional<torch::ScalarType> back, Args&&... args) {
    using Result = decltype(std::declval<M&>().forward(std::forward<Args>(args)...));
    (WatchArgument(args), ...);
    if constexpr (std::is_void_v<Result>) {
      M::forward(std::forward<Args>(args)...);
      observer_->PostForward(unit_);
    } else {
      Result result = M::forward(std::forward<Args>(args)...);
      if (back.has_value()) TensorCast{back}(result);
      ForEachTensor(result,
                    [this](const torch::Tensor& tensor) { observer_->WatchOutput(unit_, tensor); });
      observer_->PostForward(unit_);
      return result;
    }
  }

  // Arguments of types that hold no tensor, or hide it, are not watched: the unit then stays
  // readable until the end of backward, which is safe.
  template <typename T>
  void WatchArgument(const T& argument) {
    if constexpr (std::is_same_v<std::decay_t<T>, torch::Tensor>)
      observer_->WatchInput(unit_, argument);
  }
};

}  // namespace tessera

#endif  // TESSERA_CLIENT_TORCH_SHARDED_H_
