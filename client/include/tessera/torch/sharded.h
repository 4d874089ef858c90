// Makes a libtorch module a unit of sharded training, whatever its forward looks like.
//
//   struct BlockImpl : torch::nn::Module { torch::Tensor forward(torch::Tensor x); ... };
//   using Block = tessera::Sharded<BlockImpl>;      // instead of BlockImpl, nothing else changes
//   blocks->push_back(std::make_shared<Block>(config));
//
// Sharded<M> *is* an M: parameters and buffers keep their names, and until a ShardedModel attaches
// it as a unit (see sharded_model.h) it behaves as M does, so the same model trains unsharded too.
// Units nest.
//
// Attached, forward() makes the unit's parameters readable around M::forward, and again around
// backward through what it returned. So does Call() around another method:
//
//   features = encoder->Call(&EncoderImpl::features, images);
//
// Both throw StatusException where the session fails, since M::forward has no way to return a
// status; inside of a window of its own module either is the plain call. Results and
// arguments may be of any type; where they are cast (units.h), for_each_tensor.h says in
// which types tensors are found, and the method gets copies. Confined to the thread that trains.
#ifndef TESSERA_TORCH_SHARDED_H_
#define TESSERA_TORCH_SHARDED_H_

#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "tessera/torch/for_each_tensor.h"
#include "tessera/torch/internal/sharded_forward.h"
#include "tessera/torch/internal/tensor_cast.h"
#include "tessera/torch/libtorch.h"

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

// What a ShardedModel does around a unit's forward, or what is called as one. All throw
// StatusException.
class UnitObserver {
 public:
  virtual ~UnitObserver() = default;
  virtual void PreForward(int unit) = 0;
  // What the unit's floating-point arguments are cast to, if anything, and whether its result is
  // cast back.
  virtual std::optional<torch::ScalarType> InputDType(int unit) = 0;
  virtual bool CastsResultBack(int unit) = 0;
  // `member`: which of the unit's modules it is.
  virtual void PostForward(int unit, int member) = 0;
  // In place of that where the forward threw. Throws nothing.
  virtual void AbandonForward() = 0;
  // Forgets the gradients of the unit since the last step.
  virtual void ZeroGradients(int unit) = 0;
  // Runs `body` with the whole parameters of the units at and below `module`, and writes back.
  virtual void WithFullParameters(const torch::nn::Module& module,
                                  const std::function<void()>& body) = 0;
};

// The part of Sharded<M> that does not depend on M; how a ShardedModel finds units.
class ShardedBase {
 public:
  // The unit of a root that has none: its forward begins and ends the model's, and that is all.
  static constexpr int kRootWithoutUnit = -1;

  ShardedBase() = default;
  // A copy of a module has the same parameters, but is no unit.
  ShardedBase(const ShardedBase& other) : emptied_(other.emptied_) {}
  ShardedBase& operator=(const ShardedBase&) { return *this; }
  virtual ~ShardedBase() = default;
  // As which module of which unit; `observer` outlives the attachment.
  void AttachUnit(UnitObserver* observer, int unit, int member) {
    observer_ = observer;
    unit_ = unit;
    member_ = member;
  }
  void DetachUnit() {
    emptied_ |= observer_ != nullptr;
    observer_ = nullptr;
  }
  bool attached() const { return observer_ != nullptr; }
  // Whether it was attached, and its parameters were left without elements.
  bool emptied() const { return emptied_; }
  // Of the unit, where it is attached. Throws StatusException.
  void ForgetGradients() {
    if (observer_ != nullptr) observer_->ZeroGradients(unit_);
  }

 protected:
  // While one lives, the module is in a window of its own.
  class WindowScope {
   public:
    explicit WindowScope(ShardedBase* module) : module_(module) {
      module_->window_thread_ = std::this_thread::get_id();
    }
    ~WindowScope() { module_->window_thread_ = std::thread::id(); }
    WindowScope(const WindowScope&) = delete;
    WindowScope& operator=(const WindowScope&) = delete;

   private:
    ShardedBase* const module_;
  };

  // From PreForward to PostForward, or to an exception.
  class ForwardScope {
   public:
    explicit ForwardScope(ShardedBase* module) : module_(module) {
      module->observer_->PreForward(module->unit_);
    }
    ~ForwardScope() {
      if (module_ != nullptr) module_->observer_->AbandonForward();
    }
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

    void End() {
      ShardedBase* const module = std::exchange(module_, nullptr);
      module->observer_->PostForward(module->unit_, module->member_);
    }

   private:
    ShardedBase* module_;
  };

  UnitObserver* observer_ = nullptr;
  int unit_ = -1;
  int member_ = -1;
  bool in_window() const { return window_thread_ == std::this_thread::get_id(); }

  std::atomic<std::thread::id> window_thread_ = std::thread::id();  // None: in no window.
  bool emptied_ = false;
};

template <typename M>
class Sharded : public WithForward<Sharded<M>, M>, public ShardedBase {
  using Base = WithForward<Sharded<M>, M>;

 public:
  using Base::Base;

  // As M::apply. Attached, `function` sees whole parameters, and what it sets is set on all ranks
  // or on none (see SummonOptions in sharded_model.h): collective, and not within a step.
  using M::apply;
  void apply(const std::function<void(torch::nn::Module&)>& function) {
    if (observer_ == nullptr) return M::apply(function);
    observer_->WithFullParameters(*this, [&] { M::apply(function); });
  }

  // As M::zero_grad. Attached, it forgets what the job has of the gradients of the unit and of
  // those below; a unit of several modules forgets them for any of these. On all ranks.
  void zero_grad() { static_cast<torch::nn::Module&>(*this).zero_grad(); }
  void zero_grad(bool set_to_none) override {
    ForgetGradients();
    // Before libtorch looks at any: a parameter may be used at several places of the tree.
    for (const auto& module : this->modules(/*include_self=*/false)) {
      if (auto* unit = dynamic_cast<ShardedBase*>(module.get())) unit->ForgetGradients();
    }
    M::zero_grad(set_to_none);
  }

  // Base's forward() is this, with the arguments that M::forward takes.
  template <typename... Args>
  auto RunForward(Args&&... args) {
    return InWindow(
        [this](auto&&... values) {
          return this->M::forward(std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(args)...);
  }

  // `method` of M, or a function of an M&, with what forward() does around it.
  template <typename Method, typename... Args>
  auto Call(const Method& method, Args&&... args) {
    static_assert(std::is_invocable_v<const Method&, M&, Args&&...>,
                  "a method of M, or a function that takes an M&, and what it is called with");
    return InWindow(
        [this, &method](auto&&... values) {
          return std::invoke(method, static_cast<M&>(*this),
                             std::forward<decltype(values)>(values)...);
        },
        std::forward<Args>(args)...);
  }

 private:
  // What is cast is copied, so that the caller's stays as it is; other arguments are passed on.
  template <typename T>
  static constexpr bool kIsCast =
      HoldsTensors<std::decay_t<T>>::value&& std::is_copy_constructible_v<std::decay_t<T>>;
  template <typename T>
  using Held = std::conditional_t<kIsCast<T>, std::decay_t<T>, T&&>;

  template <typename T>
  static void Cast(T& value, TensorCast* cast) {
    if constexpr (kIsCast<T> && !std::is_const_v<T>) (*cast)(value);
  }

  template <typename F, typename... Args>
  auto InWindow(const F& function, Args&&... args) {
    if (observer_ == nullptr || in_window()) return function(std::forward<Args>(args)...);
    ForwardScope forward(this);  // Refused on a second thread, whose window this is not.
    const WindowScope scope(this);
    TensorCast cast(observer_->InputDType(unit_));
    if (!cast.casts()) return Run(&forward, std::nullopt, function, std::forward<Args>(args)...);
    std::tuple<Held<Args>...> held(std::forward<Args>(args)...);
    return std::apply(
        [&](auto&... values) {
          (Cast(values, &cast), ...);
          return Run(&forward, observer_->CastsResultBack(unit_) ? cast.from() : std::nullopt,
                     function, static_cast<Args&&>(values)...);
        },
        held);
  }

  // The call itself; the result goes back to `back`, if that is given.
  template <typename F, typename... Args>
  auto Run(ForwardScope* forward, std::optional<torch::ScalarType> back, const F& function,
           Args&&... args) {
    using Result = decltype(function(std::forward<Args>(args)...));
    if constexpr (std::is_void_v<Result>) {
      function(std::forward<Args>(args)...);
      forward->End();
    } else {
      Result result = function(std::forward<Args>(args)...);
      if (back.has_value()) TensorCast{back}(result);
      forward->End();
      return result;
    }
  }
};

}  // namespace tessera

#endif  // TESSERA_TORCH_SHARDED_H_
