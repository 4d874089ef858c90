// The forward() of Sharded<M>. If M has exactly one forward, not a template, Sharded<M> has one of
// the same type, so that what looks at its address knows it: torch::nn::Sequential, AnyModule, and
// operator() of a TORCH_MODULE's holder. Else it is a template for whatever M's forwards take.
//
// Default arguments of M's forward can be left out, up to four of them, and {} for one is a value
// of its type. Sequential and AnyModule leave them out too, whether or not M says
// FORWARD_HAS_DEFAULT_ARGS. AnyModule::get<Sharded<M>>() and Sequential::at<Sharded<M>>(i) do not
// compile, as forward() is a base's: keep the module's own pointer for that.
#ifndef TESSERA_TORCH_INTERNAL_SHARDED_FORWARD_H_
#define TESSERA_TORCH_INTERNAL_SHARDED_FORWARD_H_

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tessera/torch/internal/default_arguments.h"
#include "tessera/torch/libtorch.h"

namespace tessera {
namespace forward_internal {

template <typename R, typename... A>
struct Signature {};

template <typename Method>
struct SignatureOf;
template <typename C, typename R, typename... A>
struct SignatureOf<R (C::*)(A...)> {
  using Type = std::conditional_t<std::is_reference_v<R>, void, Signature<R, A...>>;
};
template <typename C, typename R, typename... A>
struct SignatureOf<R (C::*)(A...) const> : SignatureOf<R (C::*)(A...)> {};
template <typename C, typename R, typename... A>
struct SignatureOf<R (C::*)(A...) noexcept> : SignatureOf<R (C::*)(A...)> {};
template <typename C, typename R, typename... A>
struct SignatureOf<R (C::*)(A...) const noexcept> : SignatureOf<R (C::*)(A...)> {};

// Of M::forward; void where there are several, or a template, or where it returns a reference, of
// which Sharded<M> returns a copy.
template <typename M, typename = void>
struct ForwardOf {
  using Type = void;
};
template <typename M>
struct ForwardOf<M, std::void_t<typename SignatureOf<decltype(&M::forward)>::Type>> {
  using Type = typename SignatureOf<decltype(&M::forward)>::Type;
};

}  // namespace forward_internal

// Derived has a RunForward for whatever M::forward takes.
template <typename Derived, typename M, typename Signature, size_t kNumDefaults>
class ForwardOfType;

template <typename Derived, typename M>
class ForwardOfType<Derived, M, void, 0> : public M {
 public:
  using M::M;
  template <typename... Args>
  auto forward(Args&&... args) {
    return static_cast<Derived*>(this)->RunForward(std::forward<Args>(args)...);
  }
};

template <typename Derived, typename M, typename R, typename... A>
class ForwardOfType<Derived, M, forward_internal::Signature<R, A...>, 0> : public M {
 public:
  using M::M;
  R forward(A... args) { return static_cast<Derived*>(this)->RunForward(std::forward<A>(args)...); }
};

namespace forward_internal {

// Splits a signature into what must be given and what has a default.
template <typename R, typename Required, typename... D>
struct Split {};

// Calls with all arguments up to the last one that is given. One that is not, before it, was {}.
template <typename Derived, typename... A>
auto RunWith(Derived* derived, std::tuple<A...> required) {
  return std::apply([&](auto&&... args) { return derived->RunForward(std::forward<A>(args)...); },
                    std::move(required));
}
template <typename Derived, typename... A, typename D, typename... Rest>
auto RunWith(Derived* derived, std::tuple<A...> required, OrDefault<D>& next,
             OrDefault<Rest>&... rest) {
  if (!(next.given() || ... || rest.given())) return RunWith(derived, std::move(required));
  return RunWith(derived, std::tuple_cat(std::move(required), std::forward_as_tuple(next.value())),
                 rest...);
}

}  // namespace forward_internal

template <typename Derived, typename M, typename R, typename... A, typename D1>
class ForwardOfType<Derived, M, forward_internal::Split<R, std::tuple<A...>, D1>, 1>
    : public forward_internal::AnyForward<M, sizeof...(A), D1> {
 public:
  using forward_internal::AnyForward<M, sizeof...(A), D1>::AnyForward;
  R forward(A... args, forward_internal::OrDefault<D1> d1 = {}) {
    return forward_internal::RunWith(static_cast<Derived*>(this),
                                     std::tuple<A...>(std::forward<A>(args)...), d1);
  }
};
template <typename Derived, typename M, typename R, typename... A, typename D1, typename D2>
class ForwardOfType<Derived, M, forward_internal::Split<R, std::tuple<A...>, D1, D2>, 2>
    : public forward_internal::AnyForward<M, sizeof...(A), D1, D2> {
 public:
  using forward_internal::AnyForward<M, sizeof...(A), D1, D2>::AnyForward;
  R forward(A... args, forward_internal::OrDefault<D1> d1 = {},
            forward_internal::OrDefault<D2> d2 = {}) {
    return forward_internal::RunWith(static_cast<Derived*>(this),
                                     std::tuple<A...>(std::forward<A>(args)...), d1, d2);
  }
};
template <typename Derived, typename M, typename R, typename... A, typename D1, typename D2,
          typename D3>
class ForwardOfType<Derived, M, forward_internal::Split<R, std::tuple<A...>, D1, D2, D3>, 3>
    : public forward_internal::AnyForward<M, sizeof...(A), D1, D2, D3> {
 public:
  using forward_internal::AnyForward<M, sizeof...(A), D1, D2, D3>::AnyForward;
  R forward(A... args, forward_internal::OrDefault<D1> d1 = {},
            forward_internal::OrDefault<D2> d2 = {}, forward_internal::OrDefault<D3> d3 = {}) {
    return forward_internal::RunWith(static_cast<Derived*>(this),
                                     std::tuple<A...>(std::forward<A>(args)...), d1, d2, d3);
  }
};
template <typename Derived, typename M, typename R, typename... A, typename D1, typename D2,
          typename D3, typename D4>
class ForwardOfType<Derived, M, forward_internal::Split<R, std::tuple<A...>, D1, D2, D3, D4>, 4>
    : public forward_internal::AnyForward<M, sizeof...(A), D1, D2, D3, D4> {
 public:
  using forward_internal::AnyForward<M, sizeof...(A), D1, D2, D3, D4>::AnyForward;
  R forward(A... args, forward_internal::OrDefault<D1> d1 = {},
            forward_internal::OrDefault<D2> d2 = {}, forward_internal::OrDefault<D3> d3 = {},
            forward_internal::OrDefault<D4> d4 = {}) {
    return forward_internal::RunWith(static_cast<Derived*>(this),
                                     std::tuple<A...>(std::forward<A>(args)...), d1, d2, d3, d4);
  }
};

namespace forward_internal {

constexpr size_t kMostDefaults = 4;

template <typename R, typename Arguments, size_t... I, size_t... J>
Split<R, std::tuple<std::tuple_element_t<I, Arguments>...>,
      std::tuple_element_t<sizeof...(I) + J, Arguments>...>
    SplitAt(std::index_sequence<I...>, std::index_sequence<J...>);

template <typename Derived, typename M, typename Signature>
struct BaseOf {
  using Type = ForwardOfType<Derived, M, void, 0>;
};
template <typename Derived, typename M, typename R, typename... A>
struct BaseOf<Derived, M, Signature<R, A...>> {
  using Arguments = std::tuple<A...>;
  static constexpr size_t kRequired = NumRequired<M, Arguments>();
  static constexpr size_t kDefaults = sizeof...(A) - kRequired;
  template <size_t kCount>
  static auto Choose() {
    if constexpr (kCount == 0) {
      return static_cast<ForwardOfType<Derived, M, Signature<R, A...>, 0>*>(nullptr);
    } else if constexpr (kCount <= kMostDefaults) {
      using Parts = decltype(SplitAt<R, Arguments>(std::make_index_sequence<kRequired>(),
                                                   std::make_index_sequence<kCount>()));
      return static_cast<ForwardOfType<Derived, M, Parts, kCount>*>(nullptr);
    } else {
      return static_cast<ForwardOfType<Derived, M, void, 0>*>(nullptr);
    }
  }
  using Type = std::remove_pointer_t<decltype(Choose<kDefaults>())>;
};

}  // namespace forward_internal

// What Sharded<M> derives from in place of M.
template <typename Derived, typename M>
using WithForward =
    typename forward_internal::BaseOf<Derived, M,
                                      typename forward_internal::ForwardOf<M>::Type>::Type;

}  // namespace tessera

#endif  // TESSERA_TORCH_INTERNAL_SHARDED_FORWARD_H_
