// The forms in which libtorch's users hold and call modules, each with a Sharded<> one.
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/utils/rnn.h>

#include <array>
#include <map>
#include <string>
#include <unordered_map>
#include <variant>

#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"

namespace tessera {
namespace {

struct WideImpl : torch::nn::Module {
  explicit WideImpl(int64_t width)
      : linear(register_module("linear", torch::nn::Linear(width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return torch::tanh(linear->forward(x)); }
  torch::nn::Linear linear;
};
using ShardedWideImpl = Sharded<WideImpl>;
TORCH_MODULE(ShardedWide);

struct ManyFormsImpl : torch::nn::Module {
  ManyFormsImpl() {
    in_sequence = register_module(
        "in_sequence",
        torch::nn::Sequential(ShardedWide(4), torch::nn::Linear(4, 4), ShardedWide(4)));
    any = torch::nn::AnyModule(ShardedWide(4));
    register_module("any", any.ptr());
    held = register_module("held", ShardedWide(4));
  }
  torch::Tensor forward(torch::Tensor x) { return held(any.forward(in_sequence->forward(x))); }
  torch::nn::Sequential in_sequence{nullptr};
  torch::nn::AnyModule any;
  ShardedWide held{nullptr};
};

// With default arguments: a plain module's and a sharded one's calls are the same.
struct DefaultsImpl : torch::nn::Module {
  DefaultsImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  torch::Tensor forward(torch::Tensor x, const torch::Tensor& bias = {}, double factor = 2.0,
                        c10::optional<int64_t> column = c10::nullopt) {
    torch::Tensor y = linear->forward(x) * factor;
    if (bias.defined()) y = y + bias;
    return column.has_value() ? y.select(1, *column) : y;
  }
  torch::nn::Linear linear;
};
struct OverloadedImpl : torch::nn::Module {
  OverloadedImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  torch::Tensor forward(torch::Tensor x) { return linear->forward(x); }
  torch::Tensor forward(torch::Tensor x, int times) {
    for (int i = 0; i < times; ++i) x = linear->forward(x);
    return x;
  }
  torch::nn::Linear linear;
};

// One that says FORWARD_HAS_DEFAULT_ARGS.
struct Transposed : torch::nn::ConvTranspose1dImpl {
  using ConvTranspose1dImpl::ConvTranspose1dImpl;
};

struct BaseImpl : torch::nn::Module {
  virtual torch::Tensor forward(torch::Tensor x) = 0;
};
struct DerivedImpl : BaseImpl {
  DerivedImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  torch::Tensor forward(torch::Tensor x) override { return linear->forward(x); }
  torch::nn::Linear linear;
};

// Of modules as they are, or of Sharded<> ones.
template <typename M>
using Plain = M;
template <template <typename> class Wrap>
struct CallsImpl : torch::nn::Module {
  CallsImpl()
      : defaults(register_module("defaults", std::make_shared<Wrap<DefaultsImpl>>())),
        overloaded(register_module("overloaded", std::make_shared<Wrap<OverloadedImpl>>())),
        derived(register_module("derived", std::make_shared<Wrap<DerivedImpl>>())) {}
  torch::Tensor forward(torch::Tensor x) {
    const torch::Tensor bias = torch::full({4}, 0.5);
    const torch::Tensor column = defaults->forward(x, {}, 0.75, 2);
    x = defaults->forward(x) + defaults->forward(x, bias) + defaults->forward(x, bias, 0.25);
    x = overloaded->forward(x) + overloaded->forward(x, 2) + column.unsqueeze(1);
    BaseImpl& base = *derived;  // The unit's window opens through this too.
    return base.forward(x);
  }
  std::shared_ptr<Wrap<DefaultsImpl>> defaults;
  std::shared_ptr<Wrap<OverloadedImpl>> overloaded;
  std::shared_ptr<Wrap<DerivedImpl>> derived;
};

// Where torch's containers call such a module, and leave the defaults out.
template <template <typename> class Wrap>
struct DefaultsInContainersImpl : torch::nn::Module {
  DefaultsInContainersImpl() {
    in_sequence = register_module(
        "in_sequence", torch::nn::Sequential(std::make_shared<Wrap<Transposed>>(4, 4, 1),
                                             torch::nn::Conv1d(4, 4, 1),
                                             std::make_shared<Wrap<Transposed>>(4, 4, 1)));
    any = torch::nn::AnyModule(std::make_shared<Wrap<Transposed>>(4, 4, 1));
    register_module("any", any.ptr());
  }
  torch::Tensor forward(torch::Tensor x) {
    x = in_sequence->forward(x.unsqueeze(2));
    return any.forward(x).squeeze(2) + any.forward(x, c10::optional<at::IntArrayRef>()).squeeze(2);
  }
  torch::nn::Sequential in_sequence{nullptr};
  torch::nn::AnyModule any;
};

class ShardedFormsTest : public TorchCluster {
 protected:
  template <typename P, typename S>
  void ExpectTrainsAsPlain() {
    const torch::Tensor x = torch::sin(torch::arange(12)).view({3, 4});
    const auto make = [&](auto made) {
      absl::MutexLock lock(&seed_mu_);
      torch::manual_seed(5);
      made = std::make_shared<typename decltype(made)::element_type>();
      return made;
    };
    const auto plain = make(std::shared_ptr<P>());
    torch::optim::SGD optimizer(plain->parameters(), /*lr=*/0.5);
    for (int step = 0; step < 2; ++step) {
      optimizer.zero_grad();
      plain->forward(x).square().mean().backward();
      optimizer.step();
    }
    const auto expected = CopyOf(*plain);
    ForEachRank(2, [&](int rank) {
      const auto net = make(std::shared_ptr<S>());
      ASSERT_OK_AND_ASSIGN(const auto model, ShardedModel::Attach(net, OptionsFor(rank, 2)));
      EXPECT_GE(model->session().num_units(), 3);
      for (int step = 0; step < 2; ++step) {
        ASSERT_OK(model->RunStep([&] {
          net->forward(x).square().mean().backward();
          return model->Step();
        }));
      }
      SummonOptions read_only;
      read_only.writeback = false;
      ASSERT_OK(model->SummonFullParams(read_only, [&] {
        for (const auto& item : net->named_parameters()) {
          EXPECT_TRUE(torch::allclose(item.value(), expected.at(item.key()), 1e-5, 1e-6))
              << item.key();
        }
        return absl::OkStatus();
      }));
    });
  }
};

TEST_F(ShardedFormsTest, InSequentialAndAnyModuleAndByAHoldersCallOperator) {
  ExpectTrainsAsPlain<ManyFormsImpl, Sharded<ManyFormsImpl>>();
}

TEST_F(ShardedFormsTest, ForwardsWithDefaultArgumentsAndOverloadsAndVirtualOnes) {
  ExpectTrainsAsPlain<CallsImpl<Plain>, Sharded<CallsImpl<Sharded>>>();
}

TEST_F(ShardedFormsTest, ForwardsWithDefaultArgumentsInSequentialAndAnyModule) {
  ExpectTrainsAsPlain<DefaultsInContainersImpl<Plain>,
                      Sharded<DefaultsInContainersImpl<Sharded>>>();
}

// A plain AnyModule is given all arguments of a module that does not say so.
TEST_F(ShardedFormsTest, AnyModuleLeavesOutDefaultsThatTheModuleDoesNotDeclareToIt) {
  const auto module = std::make_shared<Sharded<DefaultsImpl>>();
  torch::nn::AnyModule any(module);
  const torch::Tensor x = torch::ones({2, 4});
  EXPECT_TRUE(torch::equal(any.forward(x), module->forward(x)));
  EXPECT_TRUE(torch::equal(any.forward(x, torch::ones({4})), module->forward(x, torch::ones({4}))));
  EXPECT_THROW(any.forward(), c10::Error);
}

struct Named {
  torch::Tensor x;
  std::vector<torch::Tensor> more;
  auto tensors() { return std::tie(x, more); }
};
using ByName = std::map<std::string, torch::Tensor>;
using Nested = std::unordered_map<std::string, std::pair<int, std::array<torch::Tensor, 2>>>;

// Every argument and result goes through a matrix of the unit's dtype.
struct FormsImpl : torch::nn::Module {
  FormsImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Named forward(ByName by_name, const Nested& nested, c10::optional<torch::Tensor> maybe,
                Named named, const std::vector<std::string>& names) {
    Named result;
    result.x = linear->forward(by_name.at(names.at(0))) + linear->forward(*maybe) +
               linear->forward(named.x);
    for (const torch::Tensor& tensor : nested.at("n").second)
      result.more.push_back(linear->forward(tensor));
    result.more.push_back(linear->forward(named.more.at(0)));
    return result;
  }
  torch::nn::Linear linear;
};

TEST_F(ShardedFormsTest, TensorsInContainersAndStructsAreCast) {
  static_assert(!HoldsTensors<std::vector<std::string>>::value && !HoldsTensors<int>::value &&
                !HoldsTensors<std::shared_ptr<Named>>::value);
  AttachOptions attach;
  attach.precision.param_dtype = DType::kBf16;
  attach.precision.cast_forward_inputs = true;
  const auto net = std::make_shared<Sharded<FormsImpl>>();
  ASSERT_OK_AND_ASSIGN(const auto model,
                       ShardedModel::Attach(net, OptionsFor(0, 1), AlwaysWrap(), attach));
  ASSERT_OK(model->RunStep([&] {
    const torch::Tensor x = torch::ones({2, 4});
    const Named result = net->forward({{"a", x}}, {{"n", {7, {x, x}}}}, x, Named{x, {x}}, {"a"});
    EXPECT_EQ(result.x.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(result.more.size(), 3);
    EXPECT_EQ(x.scalar_type(), torch::kFloat) << "the caller's stays as it is";
    (result.x.sum() + result.more[0].sum() + result.more[2].sum()).backward();
    return model->Step();
  }));
}

using Ordered = torch::OrderedDict<std::string, torch::Tensor>;
using Either = std::variant<int, torch::Tensor>;
using Packed = torch::nn::utils::rnn::PackedSequence;
struct TorchsOwnImpl : torch::nn::Module {
  TorchsOwnImpl() : linear(register_module("linear", torch::nn::Linear(4, 4))) {}
  Packed forward(Ordered ordered, const c10::List<torch::Tensor>& list,
                 c10::Dict<std::string, torch::Tensor> dict, Either either, const Packed& packed) {
    const torch::Tensor sum = linear->forward(ordered["a"]) + linear->forward(list.get(0)) +
                              linear->forward(dict.at("b")) +
                              linear->forward(std::get<torch::Tensor>(either));
    return Packed(linear->forward(packed.data()) + sum, packed.batch_sizes());
  }
  torch::nn::Linear linear;
};

TEST_F(ShardedFormsTest, TensorsInTorchsOwnContainersAreCast) {
  AttachOptions attach;
  attach.precision.param_dtype = DType::kBf16;
  attach.precision.cast_forward_inputs = true;
  const auto net = std::make_shared<Sharded<TorchsOwnImpl>>();
  ASSERT_OK_AND_ASSIGN(const auto model,
                       ShardedModel::Attach(net, OptionsFor(0, 1), AlwaysWrap(), attach));
  ASSERT_OK(model->RunStep([&] {
    const torch::Tensor x = torch::ones({2, 4});
    const c10::List<torch::Tensor> list({x});
    c10::Dict<std::string, torch::Tensor> dict;
    dict.insert("b", x);
    const Packed packed(x, torch::tensor({2}));
    const Packed result = net->forward(Ordered{{"a", x}}, list, dict, x, packed);
    EXPECT_EQ(result.data().scalar_type(), torch::kBFloat16);
    EXPECT_EQ(list.get(0).scalar_type(), torch::kFloat) << "the caller's stay as they are";
    EXPECT_EQ(dict.at("b").scalar_type(), torch::kFloat);
    EXPECT_EQ(packed.data().scalar_type(), torch::kFloat);
    result.data().sum().backward();
    return model->Step();
  }));
}

}  // namespace
}  // namespace tessera
