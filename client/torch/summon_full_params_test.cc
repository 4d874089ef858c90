// Whole parameters between steps: which ranks see what, and what is written back. Comments name
// items of the conformance checklist.
#include "client/torch/summon_full_params.h"

#include <set>

#include "base/status_matchers.h"
#include "client/torch/kept_gradient.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class SummonTest : public TorchCluster {
 protected:
  static SummonOptions ReadOnly() {
    SummonOptions options;
    options.writeback = false;
    return options;
  }
  static absl::Status Zero(Net& net) {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.zero_();
    return absl::OkStatus();
  }
  static absl::Status Train(Trainer& trainer, int64_t steps) {
    while (trainer.model->next_step() <= steps) {
      const absl::Status status = trainer.model->RunStep([&] {
        LossOf(*trainer.net, trainer.model->next_step(), trainer.rank).backward();
        return trainer.model->Step();
      });
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // What `steps` steps of SGD give without any cluster, `edit` done before the first.
  std::map<std::string, torch::Tensor> PlainRun(int world_size, int64_t steps,
                                                const std::function<void(Net&)>& edit = nullptr) {
    auto net = MakeNet();
    if (edit) edit(*net);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
    for (int64_t step = 1; step <= steps; ++step) {
      optimizer.zero_grad();
      for (int rank = 0; rank < world_size; ++rank)
        (LossOf(*net, step, rank) / world_size).backward();
      optimizer.step();
    }
    return CopyOf(*net);
  }
  static void ExpectClose(const std::map<std::string, torch::Tensor>& actual,
                          const std::map<std::string, torch::Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, value] : expected)
      EXPECT_TRUE(torch::allclose(actual.at(name), value, 1e-5, 1e-6)) << name;
  }
};

TEST_F(SummonTest, ChangesPersistIfWrittenBackAndOnlyThen) {  // SUM-1
  OnEachRank(3, [&](Trainer& trainer) {
    const auto initial = WholeParameters(trainer);
    ExpectClose(initial, CopyOf(*MakeNet()));
    ASSERT_OK(trainer.model->SummonFullParams(ReadOnly(), [&] { return Zero(*trainer.net); }));
    ExpectClose(WholeParameters(trainer), initial);
    ASSERT_OK(trainer.model->SummonFullParams({}, [&] { return Zero(*trainer.net); }));
    for (const auto& [name, value] : WholeParameters(trainer))
      EXPECT_EQ(value.abs().sum().item<float>(), 0) << name;
    EXPECT_EQ(trainer.model->next_step(), 1);
    EXPECT_EQ(trainer.model->session().num_writes(), 1);
  });
}

TEST_F(SummonTest, TrainingGoesOnFromWhatWasWritten) {
  const auto halve = [](Net& net) {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.mul_(0.5);
  };
  OnEachRank(3, [&](Trainer& trainer) {
    ASSERT_OK(trainer.model->SummonFullParams({}, [&] {
      halve(*trainer.net);
      return absl::OkStatus();
    }));
    ASSERT_OK(Train(trainer, 3));
    ExpectClose(WholeParameters(trainer), PlainRun(3, 3, halve));
  });
}

TEST_F(SummonTest, OnlyRankZeroSeesThemIfToldSoAndTheOthersKeepTheirs) {  // SUM-2
  OnEachRank(2, [&](Trainer& trainer) {
    SummonOptions options = ReadOnly();
    options.rank0_only = true;
    const void* before = trainer.net->out->weight.data_ptr();
    ASSERT_OK(trainer.model->SummonFullParams(options, [&] {
      if (trainer.rank == 0) {
        ExpectClose(CopyOf(*trainer.net), CopyOf(*MakeNet()));
      } else {
        EXPECT_EQ(trainer.net->out->weight.data_ptr(), before);
      }
      return absl::OkStatus();
    }));
    EXPECT_EQ(trainer.net->out->weight.data_ptr(), before) << "the job's memory again";
    ASSERT_OK(Train(trainer, 2));
    ExpectClose(WholeParameters(trainer), PlainRun(2, 2));
  });
}

TEST_F(SummonTest, WithLowPrecisionUnitsTheyAreTheFp32ValuesAndHooksStay) {  // SUM-2
  OnEachRank(
      2,
      [&](Trainer& trainer) {
        const auto expected = CopyOf(*MakeNet());
        for (const auto& [name, value] : WholeParameters(trainer)) {
          EXPECT_EQ(value.dtype(), torch::kFloat32);
          EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
        }
        // Written back unchanged, and nothing was rounded.
        ASSERT_OK(trainer.model->SummonFullParams({}, [] { return absl::OkStatus(); }));
        for (const auto& [name, value] : WholeParameters(trainer))
          EXPECT_TRUE(torch::equal(value, expected.at(name))) << name;
        double norms[2] = {};
        for (double& norm : norms) {
          ASSERT_OK(trainer.model->RunStep([&] {
            const torch::Tensor x = torch::ones({2, 3}, torch::kBFloat16);
            auto& net = *trainer.net;
            for (auto& layer : {net.first, net.second}) layer->shift = layer->shift.to(x.dtype());
            net.forward(x).square().mean().backward();
            auto result = trainer.model->StepWithResult(0.0);
            if (result.ok()) norm = result->gradient_norm;
            return result.status();
          }));
          (void)WholeParameters(trainer);
        }
        EXPECT_GT(norms[0], 0);
        EXPECT_EQ(norms[0], norms[1]) << "every gradient is counted once";
      },
      [](SessionOptions* options) { options->config.compute_dtype = DType::kBf16; });
}

TEST_F(SummonTest, OfASubmoduleAndWithoutRecursionItIsThoseUnitsAlone) {  // SUM-5, SUM-9
  OnEachRank(2, [&](Trainer& trainer) {
    Net& net = *trainer.net;
    const auto summoned = [&](const torch::nn::Module* module, bool recurse) {
      SummonOptions options = ReadOnly();
      options.module = module;
      options.recurse = recurse;
      const Session& session = trainer.model->session();
      std::set<int> units;
      EXPECT_OK(trainer.model->SummonFullParams(options, [&] {
        const torch::Tensor of_unit[] = {net.out->weight, net.first->linear->weight,
                                         net.second->linear->weight};
        for (int unit = 0; unit < 3; ++unit) {
          const char* begin = reinterpret_cast<const char*>(session.parameters(unit));
          const char* data = static_cast<const char*>(of_unit[unit].data_ptr());
          if (data < begin || data >= begin + 4096) units.insert(unit);
        }
        return absl::OkStatus();
      }));
      return units;
    };
    EXPECT_EQ(summoned(nullptr, true), (std::set<int>{0, 1, 2}));
    EXPECT_EQ(summoned(nullptr, false), std::set<int>{0});
    EXPECT_EQ(summoned(net.second.get(), true), std::set<int>{2});
    SummonOptions options = ReadOnly();
    options.module = net.out.get();
    EXPECT_THAT(trainer.model->SummonFullParams(options, [] { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no unit")));
  });
}

TEST_F(SummonTest, NamesAndValuesOfParametersAndBuffersAreThePlainModules) {  // SUM-6
  OnEachRank(2, [&](Trainer& trainer) {
    auto plain = MakeNet();
    ASSERT_OK(trainer.model->SummonFullParams(ReadOnly(), [&] {
      const auto same = [](const auto& a, const auto& b) {
        ASSERT_EQ(a.keys(), b.keys());
        for (const auto& item : a)
          EXPECT_TRUE(torch::equal(item.value(), b[item.key()])) << item.key();
      };
      for (const bool recurse : {true, false}) {
        same(trainer.net->named_parameters(recurse), plain->named_parameters(recurse));
        same(trainer.net->named_buffers(recurse), plain->named_buffers(recurse));
      }
      same(trainer.net->first->named_parameters(), plain->first->named_parameters());
      return absl::OkStatus();
    }));
  });
}

TEST_F(SummonTest, ReducedGradientsAreSeenAndWhatTheyBecomeIsTaken) {  // SUM-7, SUM-8
  OnEachRank(3, [&](Trainer& trainer) {
    auto plain = MakeNet();
    for (int rank = 0; rank < 3; ++rank) (LossOf(*plain, 1, rank) / 3).backward();
    SummonOptions options;
    options.with_grads = true;
    LossOf(*trainer.net, 1, trainer.rank).backward();
    ASSERT_OK(trainer.model->SummonFullParams(options, [&] {
      const auto expected = plain->named_parameters();
      for (auto& item : trainer.net->named_parameters()) {
        torch::Tensor& gradient = item.value().mutable_grad();
        EXPECT_EQ(gradient.defined(), item.key() != "unused") << item.key();
        if (!gradient.defined()) continue;
        EXPECT_TRUE(torch::allclose(gradient, expected[item.key()].grad(), 1e-5, 1e-7))
            << item.key();
        gradient.mul_(2);
      }
      trainer.net->in->bias.mutable_grad().reset();
      return absl::OkStatus();
    }));
    EXPECT_TRUE(IsKeptGradient(trainer.net->out->weight.grad()));
    ASSERT_OK(trainer.model->Step());
    {
      torch::NoGradGuard no_grad;
      for (auto& item : plain->named_parameters()) {
        if (item.key() != "unused" && item.key() != "in.bias")
          item.value().sub_(item.value().grad(), 2 * 0.5);
      }
    }
    ExpectClose(WholeParameters(trainer), CopyOf(*plain));
    // None at all: none is seen.
    options.writeback = false;
    ASSERT_OK(trainer.model->SummonFullParams(options, [&] {
      for (auto& parameter : trainer.net->parameters()) EXPECT_FALSE(parameter.grad().defined());
      return absl::OkStatus();
    }));
  });
}

TEST_F(SummonTest, BetweenForwardsAndBeforeBackwardItDisturbsNothing) {  // SUM-4, ORIG-6
  for (const Strategy strategy :
       {Strategy::kFullShard, Strategy::kShardGradOp, Strategy::kNoShard}) {
    OnEachRank(
        2,
        [&](Trainer& trainer) {
          ASSERT_OK(trainer.model->RunStep([&] {
            const torch::Tensor once = LossOf(*trainer.net, 1, trainer.rank);
            std::vector<bool> open;
            Session& session = trainer.model->session();
            for (int unit = 0; unit < 3; ++unit) open.push_back(session.unsharded(unit));
            (void)WholeParameters(trainer);
            for (int unit = 0; unit < 3; ++unit) EXPECT_EQ(session.unsharded(unit), open[unit]);
            const torch::Tensor twice = LossOf(*trainer.net, 1, trainer.rank);
            ((once + twice) / 2).backward();
            return trainer.model->Step();
          }));
          ExpectClose(WholeParameters(trainer), PlainRun(2, 1));
        },
        [&](SessionOptions* options) {
          options->config.strategy = strategy;
          options->job_id = "job" + std::to_string(static_cast<int>(strategy));
        });
  }
}

// Calls SummonFullParams in its forward.
struct PeekImpl : NetImpl {
  torch::Tensor forward(torch::Tensor x) {
    if (peek) peek();
    return NetImpl::forward(x);
  }
  std::function<void()> peek;
};

TEST_F(SummonTest, IsRefusedInForwardInBackwardAndWhenNested) {  // SUM-10
  auto net = std::make_shared<Sharded<PeekImpl>>();
  ASSERT_OK_AND_ASSIGN(auto model, ShardedModel::Attach(net, OptionsFor(0, 1)));
  const auto nothing = [] { return absl::OkStatus(); };
  absl::Status seen;
  const auto peek = [&] { seen = model->SummonFullParams(ReadOnly(), nothing); };
  net->peek = peek;
  torch::Tensor loss = net->forward(torch::ones({1, 3})).sum();
  EXPECT_THAT(seen, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("during forward")));
  net->peek = nullptr;
  net->out->weight.register_hook([&](const torch::Tensor&) { peek(); });
  loss = net->forward(torch::ones({1, 3})).sum();
  loss.backward();
  EXPECT_THAT(seen, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("during backward")));
  ASSERT_OK(model->session().DropGradients());
  ASSERT_OK(model->SummonFullParams(ReadOnly(), [&] {
    peek();
    EXPECT_THROW(net->forward(torch::ones({1, 3})), StatusException);
    return absl::OkStatus();
  }));
  EXPECT_THAT(seen, StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("already")));
  EXPECT_THAT(model->RunStep([&] { return model->SummonFullParams({}, nothing); }),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("within RunStep")));
}

TEST_F(SummonTest, CombinationsThatMeanNothingAreRefused) {  // SUM-10
  SummonOptions options;
  JobConfig config;
  EXPECT_OK(ValidateSummonOptions(options, config));
  options.rank0_only = true;
  EXPECT_THAT(ValidateSummonOptions(options, config),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("rank0_only")));
  options.writeback = false;
  options.offload_to_cpu = true;
  EXPECT_OK(ValidateSummonOptions(options, config));
  options.with_grads = true;
  EXPECT_THAT(ValidateSummonOptions(options, config),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("with_grads")));
  options.with_grads = false;
  config.strategy = Strategy::kNoShard;
  EXPECT_THAT(ValidateSummonOptions(options, config),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("not sharded")));
}

TEST_F(SummonTest, OffloadToTheHostChangesNothingOnTheHost) {
  OnEachRank(2, [&](Trainer& trainer) {
    SummonOptions options;
    options.offload_to_cpu = true;
    ASSERT_OK(trainer.model->SummonFullParams(options, [&] {
      EXPECT_TRUE(trainer.net->out->weight.device().is_cpu());
      return Zero(*trainer.net);
    }));
    EXPECT_EQ(WholeParameters(trainer).at("out.weight").abs().sum().item<float>(), 0);
  });
}

TEST_F(SummonTest, ErrorOfOneRanksBodyIsEveryRanksAndNothingIsWritten) {
  OnEachRank(3, [&](Trainer& trainer) {
    const auto before = WholeParameters(trainer);
    const absl::Status failed = trainer.model->SummonFullParams({}, [&]() -> absl::Status {
      EXPECT_OK(Zero(*trainer.net));
      if (trainer.rank == 1) throw std::runtime_error("no such file");
      return absl::OkStatus();
    });
    EXPECT_THAT(failed, StatusIs(absl::StatusCode::kUnknown, HasSubstr("no such file")));
    const absl::Status reshaped = trainer.model->SummonFullParams({}, [&] {
      if (trainer.rank == 2) trainer.net->first->linear->bias.set_data(torch::ones({4}));
      return Zero(*trainer.net);
    });
    EXPECT_THAT(reshaped, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   HasSubstr("cannot write back parameter 'first.linear.bias': "
                                             "its shape became [4], it was [5]")));
    ExpectClose(WholeParameters(trainer), before);
    ASSERT_OK(Train(trainer, 2));
    ExpectClose(WholeParameters(trainer), PlainRun(3, 2));
  });
}

int UnitNamed(const ShardedModel& model, const std::string& name) {
  const auto& units = model.units().model.units;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (units[unit].name == name) return static_cast<int>(unit);
  }
  ADD_FAILURE() << name;
  return 0;
}

TEST_F(SummonTest, UnitWhoseGradientOneRankSetsIsWrittenByAll) {
  OnEachRank(2, [&](Trainer& trainer) {
    const auto before = WholeParameters(trainer);
    SummonOptions options;
    options.with_grads = true;
    ASSERT_OK(trainer.model->SummonFullParams(options, [&] {
      // The rank that has the elements: the other one's slice of this unit is padding.
      if (trainer.rank == 0)
        trainer.net->first->linear->weight.mutable_grad() = torch::ones({5, 5});
      return absl::OkStatus();
    }));
    EXPECT_TRUE(trainer.model->session().reduced(UnitNamed(*trainer.model, "first")));
    EXPECT_FALSE(trainer.model->session().reduced(UnitNamed(*trainer.model, "second")));
    ASSERT_OK(trainer.model->Step());
    const auto after = WholeParameters(trainer);
    EXPECT_FALSE(torch::equal(after.at("first.linear.weight"), before.at("first.linear.weight")));
    EXPECT_TRUE(torch::equal(after.at("second.linear.weight"), before.at("second.linear.weight")));
  });
}

// A rank alone would wait for the gradients of the others.
TEST_F(SummonTest, UnitThatOnlyOneRankHasReducedIsEveryRanksErrorByName) {
  OnEachRank(2, [&](Trainer& trainer) {
    Session& session = trainer.model->session();
    const auto ones = [](int, bool, Values values) {
      for (float& value : values.as<float>()) value = 1;
      return true;
    };
    if (trainer.rank == 0) {
      ASSERT_OK(session.WriteGradients(UnitNamed(*trainer.model, "first"), ones));
    }
    SummonOptions options = ReadOnly();
    options.with_grads = true;
    options.module = trainer.net->first.get();
    options.recurse = false;
    EXPECT_THAT(trainer.model->SummonFullParams(options, [] { return absl::OkStatus(); }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("of ranks 0 and 1 only one has reduced unit 'first'")));
    ASSERT_OK(session.DropGradients());
    ASSERT_OK(Train(trainer, 1));
  });
}

TEST_F(SummonTest, GradientThatCannotBeCopiedIsEveryRanksErrorByName) {
  OnEachRank(2, [&](Trainer& trainer) {
    SummonOptions options;
    options.with_grads = true;
    EXPECT_THAT(trainer.model->SummonFullParams(options,
                                                [&] {
                                                  if (trainer.rank == 1)
                                                    trainer.net->in->bias.mutable_grad() =
                                                        torch::ones({5}).to_sparse();
                                                  return absl::OkStatus();
                                                }),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         HasSubstr("the gradient of 'in.bias': it is not a dense tensor")));
    ASSERT_OK(Train(trainer, 1));
  });
}

class SummonKillTest : public SummonTest, public testing::WithParamInterface<const char*> {
 protected:
  // Each executor dies at its third write. One that replaces it may make two, so that in the end
  // all finish, in whatever order they die.
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2;
    options.executor_binary = "worker/tessera-executor";
    options.executor_flags = {std::string("--fault-points=") + GetParam() + "=kill@3"};
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
};

TEST_P(SummonKillTest, ExecutorsDeathInTheMiddleOfWritingBackIsNotNoticed) {
  OnEachRank(2, [&](Trainer& trainer) {
    ASSERT_OK(Train(trainer, 1));
    for (const float value : {1.0f, 2.0f, 3.0f}) {
      ASSERT_OK(trainer.model->SummonFullParams({}, [&] {
        torch::NoGradGuard no_grad;
        for (auto& parameter : trainer.net->parameters()) parameter.fill_(value);
        return absl::OkStatus();
      }));
      EXPECT_EQ(trainer.model->session().num_writes(), value);
    }
    for (const auto& [name, value] : WholeParameters(trainer))
      EXPECT_TRUE(torch::equal(value, torch::full_like(value, 3))) << name;
    EXPECT_EQ(trainer.model->next_step(), 2);
  });
}

INSTANTIATE_TEST_SUITE_P(Points, SummonKillTest,
                         testing::Values("write.before-vote", "write.after-decision"));

void FillLinears(torch::nn::Module& module) {
  torch::NoGradGuard no_grad;
  if (auto* linear = module.as<torch::nn::Linear>()) {
    linear->weight.fill_(1);
    linear->bias.fill_(1);
  }
}

TEST_F(SummonTest, ApplyChangesTheParametersInPlace) {  // APP-1
  OnEachRank(2, [&](Trainer& trainer) {
    trainer.net->apply(FillLinears);
    const auto all = WholeParameters(trainer);
    for (const auto& [name, value] : all)
      EXPECT_TRUE(torch::equal(value, torch::ones_like(value))) << name;
    // Of a unit alone.
    trainer.net->second->apply([](torch::nn::Module& module) {
      torch::NoGradGuard no_grad;
      for (auto& parameter : module.parameters(/*recurse=*/false)) parameter.fill_(2);
    });
    for (const auto& [name, value] : WholeParameters(trainer)) {
      const float expected = name.rfind("second.", 0) == 0 ? 2 : 1;
      EXPECT_TRUE(torch::equal(value, torch::full_like(value, expected))) << name;
    }
  });
}

TEST_F(SummonTest, ApplyInsideOfItIsAnError) {  // APP-3
  OnEachRank(2, [&](Trainer& trainer) {
    EXPECT_THAT(trainer.model->SummonFullParams(ReadOnly(),
                                                [&] {
                                                  trainer.net->apply(FillLinears);
                                                  return absl::OkStatus();
                                                }),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("already")));
  });
}

TEST_F(SummonTest, ApplyOfAModuleThatIsNotAttachedIsThePlainOne) {
  auto net = MakeNet();
  net->apply(FillLinears);
  EXPECT_TRUE(torch::equal(net->out->weight, torch::ones({1, 5})));
}

}  // namespace
}  // namespace tessera
