// With what the ranks of a new job begin. Comments name items of the conformance checklist.
#include "client/torch/module_states.h"

#include <stdexcept>

#include "absl/strings/match.h"
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "gtest/gtest.h"
#include "tessera/initializer.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr uint64_t kSeed = 11;

class StatesTest : public TorchCluster {
 protected:
  // `edit` gets a fresh net; `body` what became of attaching it.
  using Attached = absl::StatusOr<std::unique_ptr<ShardedModel>>;
  void AttachEach(int world_size, const std::function<AttachOptions(int rank, Net&)>& edit,
                  const std::function<void(Trainer&, const absl::Status&)>& body,
                  const std::string& job = "torch") {
    ForEachRank(world_size, [&](int rank) {
      Trainer trainer = {rank, MakeNet(), nullptr};
      const AttachOptions attach = edit(rank, *trainer.net);
      SessionOptions options = OptionsFor(rank, world_size);
      options.job_id = job;
      Attached model = ShardedModel::Attach(trainer.net, options, AlwaysWrap(), attach);
      if (model.ok()) trainer.model = *std::move(model);
      body(trainer, model.status());
    });
  }
  static void Spoil(Net& net, float with) {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net.parameters()) parameter.fill_(with);
    for (auto& buffer : net.buffers()) buffer.fill_(with);
  }
  static std::map<std::string, torch::Tensor> ExpectedOf(const Initializer& initializer) {
    std::map<std::string, torch::Tensor> values;
    Net net;
    for (const auto& item : net.named_parameters()) {
      const std::vector<int64_t> shape = item.value().sizes().vec();
      torch::Tensor tensor = torch::empty(shape);
      FillSlice(initializer, kSeed, {item.key(), shape}, 0,
                absl::MakeSpan(tensor.data_ptr<float>(), tensor.numel()));
      values[item.key()] = tensor;
    }
    return values;
  }
  static void ExpectEqual(const std::map<std::string, torch::Tensor>& actual,
                          const std::map<std::string, torch::Tensor>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (const auto& [name, value] : expected)
      EXPECT_TRUE(torch::equal(actual.at(name), value)) << name;
  }
};

TEST_F(StatesTest, ParametersAndBuffersAreThoseOfRankZeroIfToldSo) {  // HSYNC-1, F2INIT-9
  const auto expected = CopyOf(*MakeNet());
  AttachEach(
      4,
      [](int rank, Net& net) {
        if (rank == 0) {
          net.first->shift.fill_(42);
          net.second->shift.fill_(7);
        } else {
          Spoil(net, static_cast<float>(rank));
        }
        AttachOptions attach;
        attach.sync_module_states = true;
        return attach;
      },
      [&](Trainer& trainer, const absl::Status& status) {
        ASSERT_OK(status);
        ExpectEqual(WholeParameters(trainer), expected);
        EXPECT_TRUE(torch::equal(trainer.net->first->shift, torch::full({5}, 42.0)));
        EXPECT_TRUE(torch::equal(trainer.net->second->shift, torch::full({5}, 7.0)));
      });
}

TEST_F(StatesTest, OtherRanksMayBeOnTheMetaDeviceThen) {  // HSYNC-1
  const auto expected = CopyOf(*MakeNet());
  AttachEach(
      3,
      [](int rank, Net& net) {
        if (rank != 0) MoveToMeta(net);
        AttachOptions attach;
        attach.sync_module_states = true;
        return attach;
      },
      [&](Trainer& trainer, const absl::Status& status) {
        ASSERT_OK(status);
        ExpectEqual(WholeParameters(trainer), expected);
      });
}

TEST_F(StatesTest, DifferenceIsAnErrorOnEveryRankThatNamesTheTensorAndTheRanks) {
  const auto refused = [&](const std::string& job, const char* what,
                           const std::function<void(Net&)>& spoil) {
    AttachEach(
        3,
        [&](int rank, Net& net) {
          if (rank == 2) spoil(net);
          AttachOptions attach;
          attach.publish_buffers = false;  // Or jobs of other buffers would not begin.
          return attach;
        },
        [&](Trainer&, const absl::Status& status) {
          EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                       AllOf(HasSubstr("ranks 0 and 2"), HasSubstr(what))));
        },
        job);
  };
  refused("parameter", "parameter 'first.linear.bias'", [](Net& net) {
    torch::NoGradGuard no_grad;
    net.first->linear->bias[3] += 1e-6;
    net.second->linear->weight[0][0] += 1;
  });
  refused("buffer", "buffer 'second.shift'", [](Net& net) { net.second->shift[4] = 0; });
  refused("names", "the names of the buffers",
          [](Net& net) { net.second->register_buffer("more", torch::ones({1})); });
}

TEST_F(StatesTest, DifferencesPassWhereTheCheckIsOffOrTheModuleIsIgnored) {
  const auto pass = [](Trainer&, const absl::Status& status) { EXPECT_OK(status); };
  AttachEach(
      2,
      [](int rank, Net& net) {
        net.first->shift.fill_(rank);
        AttachOptions attach;
        attach.check_module_states = false;
        return attach;
      },
      pass, "off");
  AttachEach(
      2,
      [](int rank, Net& net) {
        torch::NoGradGuard no_grad;
        net.in->weight.fill_(rank);
        AttachOptions attach;
        attach.ignored.modules = {net.in.ptr()};
        return attach;
      },
      pass, "ignored");
}

TEST_F(StatesTest, ParametersOnTheMetaDeviceAreFilledInAlikeInEveryWorld) {  // META-1, META-3
  const Initializer initializer = Initializer::Normal(0, 0.3);
  for (int world_size = 1; world_size <= 4; ++world_size) {
    AttachEach(
        world_size,
        [&](int, Net& net) {
          MoveToMeta(net);
          for (const auto& parameter : net.parameters()) EXPECT_TRUE(parameter.is_meta());
          EXPECT_TRUE(net.out->weight.is_meta()) << "every holder of the tensor sees it";
          AttachOptions attach;
          attach.initialize_meta = InitializedBy(initializer, kSeed);
          return attach;
        },
        [&](Trainer& trainer, const absl::Status& status) {
          ASSERT_OK(status);
          EXPECT_FALSE(trainer.net->out->weight.is_meta());
          ExpectEqual(WholeParameters(trainer), ExpectedOf(initializer));
          // And it trains as a net that had these values from the beginning.
          auto plain = MakeNet();
          const auto values = ExpectedOf(initializer);
          for (auto& item : plain->named_parameters()) item.value().set_data(values.at(item.key()));
          for (int rank = 0; rank < world_size; ++rank)
            (LossOf(*plain, 1, rank) / world_size).backward();
          ASSERT_OK(trainer.model->RunStep([&] {
            LossOf(*trainer.net, 1, trainer.rank).backward();
            return trainer.model->Step();
          }));
          const auto actual = WholeParameters(trainer);
          for (auto& item : plain->named_parameters()) {
            torch::Tensor expected = item.value().detach();
            if (item.value().grad().defined()) expected = expected - 0.5 * item.value().grad();
            EXPECT_TRUE(torch::allclose(actual.at(item.key()), expected, 1e-5, 1e-6)) << item.key();
          }
        },
        "world" + std::to_string(world_size));
  }
}

TEST_F(StatesTest, UsersFunctionIsAskedForEachElementOnceAndOnlyForTheMetaOnes) {  // META-1
  absl::Mutex mu;
  int64_t asked = 0;
  const auto expected = CopyOf(*MakeNet());
  AttachEach(
      3,
      [&](int, Net& net) {
        MoveToMeta(*net.second);
        AttachOptions attach;
        attach.initialize_meta = [&](const TensorSpec& parameter, int64_t begin,
                                     absl::Span<float> values) {
          EXPECT_TRUE(absl::StartsWith(parameter.name, "second.")) << parameter.name;
          for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(begin + i);
          absl::MutexLock lock(&mu);
          asked += static_cast<int64_t>(values.size());
          return absl::OkStatus();
        };
        return attach;
      },
      [&](Trainer& trainer, const absl::Status& status) {
        ASSERT_OK(status);
        for (const auto& [name, value] : WholeParameters(trainer)) {
          const torch::Tensor filled = torch::arange(value.numel(), torch::kFloat32).view_as(value);
          const bool meta = absl::StartsWith(name, "second.");
          EXPECT_TRUE(torch::equal(value, meta ? filled : expected.at(name))) << name;
        }
      });
  EXPECT_EQ(asked, 5 * 5 + 5);
}

TEST_F(StatesTest, MetaParametersWithoutAFunctionAreAllNamed) {  // META-5
  AttachEach(
      2,
      [](int, Net& net) {
        MoveToMeta(*net.in.ptr());
        return AttachOptions();
      },
      [](Trainer&, const absl::Status& status) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("initialize_meta: in.weight, in.bias")));
      });
}

TEST_F(StatesTest, ErrorOfTheFunctionOnOneRankIsEveryRanks) {
  AttachEach(
      2,
      [](int rank, Net& net) {
        MoveToMeta(net);
        AttachOptions attach;
        attach.initialize_meta = [rank](const TensorSpec&, int64_t, absl::Span<float>) {
          return rank == 1 ? absl::NotFoundError("no file of weights") : absl::OkStatus();
        };
        return attach;
      },
      [](Trainer& trainer, const absl::Status& status) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound,
                                     HasSubstr(trainer.rank == 1 ? "no file of weights"
                                                                 : "rank 1: no file of weights")));
      },
      "failing");
  AttachEach(
      2,
      [](int, Net& net) {
        MoveToMeta(net);
        AttachOptions attach;
        attach.initialize_meta = InitializedBy(Initializer::XavierNormal(), kSeed);
        return attach;
      },
      [](Trainer&, const absl::Status& status) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                     HasSubstr("xavier and kaiming need two dimensions")));
      },
      "xavier");
}

TEST_F(StatesTest, ExceptionOfTheFunctionOnOneRankIsEveryRanks) {
  AttachEach(
      2,
      [](int rank, Net& net) {
        MoveToMeta(net);
        AttachOptions attach;
        attach.initialize_meta = [rank](const TensorSpec&, int64_t, Values) -> absl::Status {
          if (rank == 1) throw std::runtime_error("no file of weights");
          return absl::OkStatus();
        };
        return attach;
      },
      [](Trainer&, const absl::Status& status) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnknown, HasSubstr("no file of weights")));
      });
}

TEST_F(StatesTest, ErrorOfFirstValuesOnOneRankIsEveryRanks) {
  AttachEach(
      2,
      [](int rank, Net&) {
        AttachOptions attach;
        attach.first_values = [rank](Session* session) -> absl::Status {
          if (rank == 1) return absl::NotFoundError("no file of weights");
          return session->Initialize([](int, int, Values) {});
        };
        return attach;
      },
      [](Trainer&, const absl::Status& status) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, HasSubstr("no file of weights")));
      });
}

TEST_F(StatesTest, BuffersOfAnotherShapeCannotBeRankZerosAndAreEveryRanksError) {
  AttachEach(
      2,
      [](int rank, Net& net) {
        if (rank == 1) net.second->shift.set_data(torch::ones({3}));
        AttachOptions attach;
        attach.publish_buffers = false;  // Or jobs of other buffers would not begin.
        attach.sync_module_states = true;
        return attach;
      },
      [](Trainer&, const absl::Status& status) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                     HasSubstr("ranks 0 and 1 have buffers of different")));
      });
}

}  // namespace
}  // namespace tessera
