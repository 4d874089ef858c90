// Whatever state_dict() holds is saved and loaded, whichever way.
#include <torch/nn/modules/batchnorm.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/barrier.h"
#include "base/status_matchers.h"
#include "client/torch/torch_cluster.h"
#include "tessera/checkpoint.h"
#include "tessera/stored_model.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    linear = register_module("linear", torch::nn::Linear(4, 6));
    norm = register_module("norm", torch::nn::BatchNorm1d(6));
    mask = register_buffer("mask", torch::tensor({true, false, true}));
    shift = register_buffer("shift", torch::ones({1}).expand({6}));
    seen = register_buffer("seen", torch::zeros({1}));
  }
  torch::Tensor forward(torch::Tensor x) {
    if (is_training()) seen.add_(1.0 / 3);
    return norm->forward(linear->forward(x) + shift);
  }
  torch::nn::Linear linear{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::Tensor mask, shift, seen;
};
using Normed = Sharded<NormedImpl>;

class ModelStatesTest : public TorchCluster {
 protected:
  void SetUp() override {
    TorchCluster::SetUp();
    folder_ = testing::TempDir() + "/model_states";
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  struct Own {
    int rank;
    std::shared_ptr<Normed> net;
    std::unique_ptr<ShardedModel> model;
    torch::Tensor Evaluate() {
      net->eval();
      torch::NoGradGuard no_grad;
      const torch::Tensor y = net->forward(torch::linspace(-1, 1, 12).view({3, 4})).clone();
      net->train();
      return y;
    }
  };
  void OnEach(const std::string& job, const std::function<void(Own&)>& body,
              const AttachOptions& attach = {}) {
    ForEachRank(2, [&](int rank) {
      SessionOptions options = OptionsFor(rank, 2);
      options.job_id = job;
      Own own = {rank, nullptr, nullptr};
      {
        absl::MutexLock lock(&seed_mu_);
        torch::manual_seed(3);
        own.net = std::make_shared<Normed>();
      }
      ASSERT_OK_AND_ASSIGN(own.model, ShardedModel::Attach(own.net, options, AlwaysWrap(), attach));
      body(own);
    });
  }
  static void Train(Own& own) {
    for (int step = 1; step <= 3; ++step) {
      EXPECT_OK(own.model->RunStep([&] {
        // The same data on both ranks, so that their running statistics are alike.
        own.net->forward(torch::sin(torch::arange(20).view({5, 4}) * (step + 0.5)))
            .square()
            .mean()
            .backward();
        return own.model->Step();
      }));
    }
  }
  // Trains, saves by `save`, and gives it by `load` to a model of another job.
  void ExpectCarried(const std::function<absl::Status(Own&)>& save,
                     const std::function<absl::Status(Own&)>& load) {
    torch::Tensor expected;
    OnEach("first", [&](Own& own) {
      Train(own);
      own.net->mask.logical_not_();
      const torch::Tensor y = own.Evaluate();
      if (own.rank == 0) expected = y;
      EXPECT_OK(save(own));
    });
    OnEach("second", [&](Own& own) {
      EXPECT_OK(load(own));
      EXPECT_TRUE(torch::equal(own.Evaluate(), expected));
      EXPECT_EQ(own.net->norm->num_batches_tracked.item<int64_t>(), 3);
      EXPECT_TRUE(torch::equal(own.net->mask, torch::tensor({false, true, false})));
      EXPECT_TRUE(torch::equal(own.net->shift, torch::ones({6})));
    });
  }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  std::string folder_;
};

TEST_F(ModelStatesTest, OneFileHasTheBuffers) {
  ExpectCarried(
      [&](Own& own) { return own.model->session().Save(Path("m.safetensors")); },
      [&](Own& own) { return LoadModel(&own.model->session(), Path("m.safetensors")).status(); });
}

TEST_F(ModelStatesTest, FolderOfFilesHasThem) {
  SaveOptions options;
  options.max_file_bytes = 64;
  ExpectCarried([&](Own& own) { return SaveModel(&own.model->session(), Path("m"), options); },
                [&](Own& own) { return LoadModel(&own.model->session(), Path("m")).status(); });
}

TEST_F(ModelStatesTest, CheckpointOfTheSessionHasThem) {
  ExpectCarried(
      [&](Own& own) { return SaveCheckpoint(&own.model->session(), Path("c")); },
      [&](Own& own) { return LoadCheckpoint(&own.model->session(), Path("c")).status(); });
}

TEST_F(ModelStatesTest, RoundedFileHasBuffersThatAreNot) {
  SaveOptions options;
  options.dtype = DType::kBf16;
  torch::Tensor mean;
  OnEach("first", [&](Own& own) {
    Train(own);
    EXPECT_OK(SaveModel(&own.model->session(), Path("m.safetensors"), options));
    if (own.rank == 0) mean = own.net->norm->running_mean.clone();
  });
  OnEach("second", [&](Own& own) {
    EXPECT_OK(LoadModel(&own.model->session(), Path("m.safetensors")));
    EXPECT_TRUE(torch::equal(own.net->norm->running_mean, mean));
  });
}

TEST_F(ModelStatesTest, BuffersThatAFileLacksAreNamed) {
  OnEach("first", [&](Own& own) {
    EXPECT_OK(own.model->session().Save(Path("m.safetensors")));
    LoadOptions exclude;
    exclude.names.exclude = {"norm.*"};
    ASSERT_OK_AND_ASSIGN(const LoadReport report,
                         LoadModel(&own.model->session(), Path("m.safetensors"), exclude));
    EXPECT_THAT(report.missing, ElementsAre());
    EXPECT_THAT(report.unexpected, ElementsAre());
    LoadOptions renamed;
    renamed.names.renames = {{"norm.running_mean", "norm.mean"}};
    EXPECT_THAT(LoadModel(&own.model->session(), Path("m.safetensors"), renamed),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("it lacks 'norm.running_mean'"),
                               HasSubstr("the model lacks 'norm.running_mean'"))));
    renamed.strict = false;
    ASSERT_OK_AND_ASSIGN(const LoadReport lenient,
                         LoadModel(&own.model->session(), Path("m.safetensors"), renamed));
    EXPECT_THAT(lenient.missing, UnorderedElementsAre("norm.running_mean"));
  });
}

TEST_F(ModelStatesTest, UnpublishedBuffersAreSavedToo) {
  AttachOptions attach;
  attach.publish_buffers = false;
  torch::Tensor mean;
  OnEach(
      "first",
      [&](Own& own) {
        Train(own);
        EXPECT_OK(own.model->session().Save(Path("m.safetensors")));
        if (own.rank == 0) mean = own.net->norm->running_mean.clone();
      },
      attach);
  OnEach(
      "second",
      [&](Own& own) {
        EXPECT_OK(LoadModel(&own.model->session(), Path("m.safetensors")));
        EXPECT_TRUE(torch::equal(own.net->norm->running_mean, mean));
      },
      attach);
}

TEST_F(ModelStatesTest, BufferThatFilesCannotHoldIsNamed) {
  OnEach("first", [&](Own& own) {
    own.net->mask.set_data(torch::zeros({2}, torch::kComplexDouble));
    EXPECT_THAT(own.model->session().Save(Path("m.safetensors")),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("'mask'"), HasSubstr("omplex"))));
  });
}

TEST_F(ModelStatesTest, LoadThatOneRankAloneRefusesChangesNoRankAndTrainingGoesOn) {
  for (const bool published : {false, true}) {
    SCOPED_TRACE(published);
    AttachOptions attach;
    attach.publish_buffers = published;
    auto* const saving = new absl::Barrier(2);
    const auto refused_on_rank_1 = [&](Own& own) {
      Train(own);
      EXPECT_OK(own.model->session().Save(Path("m.safetensors")));
      own.net->norm->running_mean.fill_(7);
      const torch::Tensor mask = own.net->mask.clone();
      if (saving->Block()) delete saving;  // Rank 1's failure is not to end the save of rank 0.
      if (own.rank == 1) own.net->mask.set_data(torch::zeros({2}, torch::kComplexDouble));
      const absl::Status refused = LoadModel(&own.model->session(), Path("m.safetensors")).status();
      EXPECT_EQ(refused.code(), published ? absl::StatusCode::kFailedPrecondition
                                          : absl::StatusCode::kInvalidArgument)
          << refused;
      EXPECT_THAT(refused.message(), HasSubstr("'mask'"));
      EXPECT_THAT(refused.message(), HasSubstr(own.rank == 0 ? "rank 1: " : ""));
      EXPECT_TRUE(torch::equal(own.net->norm->running_mean, torch::full({6}, 7.0)));
      own.net->mask.set_data(mask);
      Train(own);
      EXPECT_OK(LoadModel(&own.model->session(), Path("m.safetensors")).status());
      EXPECT_EQ(own.net->norm->num_batches_tracked.item<int64_t>(), 3);
    };
    OnEach(published ? "published" : "own", refused_on_rank_1, attach);
  }
}

// As module->to(torch::kDouble) does. Files and other trainers still see the declared dtype.
TEST_F(ModelStatesTest, BufferThatGotAnotherFloatingPointDTypeIsRoundedInTheState) {
  torch::Tensor seen;
  OnEach("first", [&](Own& own) {
    own.net->seen.set_data(own.net->seen.to(torch::kDouble));
    Train(own);
    EXPECT_EQ(own.net->seen.scalar_type(), torch::kDouble);
    EXPECT_OK(own.model->session().Save(Path("m.safetensors")));
    if (own.rank == 0) seen = own.net->seen.to(torch::kFloat);
  });
  OnEach("second", [&](Own& own) {
    EXPECT_OK(LoadModel(&own.model->session(), Path("m.safetensors")));
    EXPECT_EQ(own.net->seen.scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(own.net->seen, seen));
  });
}

}  // namespace
}  // namespace tessera
