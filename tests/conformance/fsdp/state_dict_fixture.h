// What the tests of state dicts share: a model attached on each rank, and comparisons.
#ifndef TESSERA_TESTS_CONFORMANCE_FSDP_STATE_DICT_FIXTURE_H_
#define TESSERA_TESTS_CONFORMANCE_FSDP_STATE_DICT_FIXTURE_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status_matchers.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/state_dicts.h"
#include "tests/conformance/fsdp/harness.h"
#include "tests/conformance/fsdp/models.h"

namespace tessera::conformance {

// "FULL_STATE_DICT" as a part of a test's name: "Full".
inline std::string ShortName(StateDictType type) {
  return type == StateDictType::kFull    ? "Full"
         : type == StateDictType::kLocal ? "Local"
                                         : "Sharded";
}

inline std::vector<std::string> KeysOf(const StateDict& dict) { return dict.keys(); }

// Of a module that is not attached: of each module its parameters, then its buffers.
inline std::vector<std::string> KeysOf(const torch::nn::Module& module) {
  std::vector<std::string> keys;
  for (const auto& item : module.named_modules()) {
    const std::string prefix = item.key().empty() ? "" : item.key() + ".";
    for (const auto& p : item.value()->named_parameters(false)) keys.push_back(prefix + p.key());
    for (const auto& b : item.value()->named_buffers(false)) keys.push_back(prefix + b.key());
  }
  return keys;
}

inline void ExpectEqual(const Tensors& values, const Tensors& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, tensor] : expected)
    EXPECT_TRUE(torch::equal(values.at(name), tensor)) << name;
}

template <typename M>
struct Trainer {
  int rank;
  std::shared_ptr<M> model;
  std::unique_ptr<ShardedModel> sharded;
  std::unique_ptr<StateDicts> states;
};

class StateDictTest : public ConformanceTest {
 protected:
  template <typename M>
  struct Job {
    std::function<std::shared_ptr<M>()> make;
    int world_size = 2;
    WrapPolicy policy = AlwaysWrap();
    AttachOptions attach;
    std::function<void(SessionOptions*)> edit = nullptr;
  };

  // A job of its own. The body runs on every rank at once.
  template <typename M>
  void OnRanks(const Job<M>& job, const std::function<void(Trainer<M>&)>& body) {
    const SessionOptions options = Options(job.world_size);
    ForEachRank(job.world_size, [&](int rank) {
      Trainer<M> own = {rank, job.make(), nullptr, nullptr};
      SessionOptions of_rank = options;
      of_rank.rank = rank;
      if (job.edit) job.edit(&of_rank);
      ASSERT_OK_AND_ASSIGN(own.sharded,
                           ShardedModel::Attach(own.model, of_rank, job.policy, job.attach));
      own.states = std::make_unique<StateDicts>(own.sharded.get());
      body(own);
    });
  }

  template <typename M>
  static void Train(Trainer<M>& rank, int64_t steps) {
    for (int64_t step = 1; step <= steps; ++step) {
      ASSERT_OK(rank.sharded->RunStep([&] {
        LossOf(*rank.model, step, rank.rank).backward();
        return rank.sharded->Step();
      }));
    }
  }

  // Every parameter becomes this, on all ranks.
  template <typename M>
  static void Fill(Trainer<M>& rank, double value) {
    ASSERT_OK(rank.sharded->SummonFullParams({}, [&] {
      const torch::NoGradGuard no_grad;
      for (torch::Tensor& parameter : rank.model->parameters()) parameter.fill_(value);
      return absl::OkStatus();
    }));
  }

  template <typename M>
  static Tensors Whole(Trainer<M>& rank) {
    return WholeParameters(rank.sharded.get(), *rank.model);
  }
};

}  // namespace tessera::conformance

#endif  // TESSERA_TESTS_CONFORMANCE_FSDP_STATE_DICT_FIXTURE_H_
