// Ordinary modules that are set from a job that trains: by a client outside the job.
#include "tessera/torch/live_module.h"

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tessera/torch/libtorch.h"
#include "tessera/torch/state_dicts.h"
#include "tests/integration/live_net.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Values = std::map<std::string, torch::Tensor>;

Values ValuesOf(const torch::nn::Module& module) {
  Values values;
  for (const auto& item : module.named_parameters())
    values[item.key()] = item.value().detach().clone();
  for (const auto& item : module.named_buffers()) values[item.key()] = item.value().clone();
  return values;
}

void ExpectEqual(const Values& values, const Values& expected) {
  for (const auto& [name, value] : expected) {
    ASSERT_EQ(values.count(name), 1u) << name;
    EXPECT_EQ(values.at(name).scalar_type(), value.scalar_type()) << name;
    EXPECT_TRUE(torch::equal(values.at(name), value)) << name;
  }
  EXPECT_EQ(values.size(), expected.size());
}

// Another module of the same program: whole, and of other values.
std::shared_ptr<LiveNetImpl> OtherNet() {
  auto net = std::make_shared<LiveNetImpl>();
  const torch::NoGradGuard no_grad;
  for (torch::Tensor& parameter : net->parameters()) parameter.fill_(-4);
  return net;
}

class LiveModuleTest : public LiveNetTest {
 protected:
  LiveModule Options(bool through_coordinator = false) const {
    LiveModule options;
    options.reader.coordinator_address = coordinator();
    options.reader.worker_addresses = workers();
    options.reader.through_coordinator = through_coordinator;
    options.job_id = "live";
    return options;
  }

  // Rank 0's whole state of the last step, noted under its number. Collective.
  void Note(Rank& rank) {
    StateDicts states(rank.model.get());
    ASSERT_OK_AND_ASSIGN(const StateDict dict, states.Get(*rank.net));
    if (rank.rank != 0) return;
    Values values;
    for (const auto& item : dict) values[item.key()] = item.value().tensor.clone();
    absl::MutexLock lock(&mu_);
    by_step_[rank.model->next_step() - 1] = std::move(values);
  }

  // Once the trainers have noted it.
  Values At(int64_t step) {
    absl::MutexLock lock(&mu_);
    const auto noted = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return by_step_.count(step) != 0; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&noted), absl::Seconds(60)));
    return by_step_[step];
  }

  // A job that took a step and stands still.
  void TrainOneStep() {
    OnEachRank([&](Rank& rank) {
      ASSERT_OK(Step(&rank));
      Note(rank);
    });
  }

 private:
  absl::Mutex mu_;
  std::map<int64_t, Values> by_step_ ABSL_GUARDED_BY(mu_);
};

TEST_F(LiveModuleTest, IsSetToTheBitsOfOneCommittedStepWhileTrainingGoesOnBothWays) {
  Start({2, 1});
  std::atomic<bool> is_done{false};
  std::atomic<int64_t> last_step{-1};  // Of all ranks; -1: not known yet.
  std::atomic<int64_t> taken{0};
  std::atomic<bool> stop{false};
  std::thread reader([&] {
    for (int i = 0; i < 8; ++i) {
      // Each is of another step.
      while (taken.load() < 2 * i + 1 && !stop.load()) std::this_thread::yield();
      if (stop.load()) break;
      auto net = OtherNet();
      std::vector<const void*> memory;
      for (const torch::Tensor& parameter : net->parameters())
        memory.push_back(parameter.data_ptr());
      const auto loaded = LoadLiveState(net.get(), Options(i % 2 == 1));
      EXPECT_OK(loaded);
      if (!loaded.ok()) continue;
      if (i % 2 == 1) {
        EXPECT_FALSE(loaded->is_mapped);
      }
      EXPECT_GE(loaded->version.trained_step, 2 * i + 1);
      EXPECT_TRUE(loaded->missing.empty());
      EXPECT_TRUE(loaded->unexpected.empty());
      ExpectEqual(ValuesOf(*net), At(loaded->version.trained_step));
      for (size_t p = 0; p < memory.size(); ++p)
        EXPECT_EQ(net->parameters()[p].data_ptr(), memory[p]);
    }
    is_done.store(true);
  });
  OnEachRank([&](Rank& rank) {
    for (int64_t step = 1; step != last_step.load() + 1 || last_step.load() < 0; ++step) {
      // Said before the step that it is about, which no rank ends without the other.
      if (rank.rank == 0 && is_done.load() && last_step.load() < 0) last_step.store(step);
      ASSERT_OK(Step(&rank));
      Note(rank);
      if (rank.rank == 0) taken.store(step);
    }
  });
  stop.store(true);  // Also where a rank failed.
  reader.join();
}

TEST_F(LiveModuleTest, KeepsItsDTypesAndElementsAreRoundedToThem) {
  Start({2, 2});
  TrainOneStep();
  auto net = OtherNet();
  std::vector<torch::Tensor> tensors = net->parameters(), buffers = net->buffers();
  tensors.insert(tensors.end(), buffers.begin(), buffers.end());
  for (torch::Tensor& tensor : tensors)  // Counts stay counts.
    if (tensor.is_floating_point()) tensor.set_data(tensor.to(torch::kBFloat16));
  ASSERT_OK_AND_ASSIGN(const LoadedLiveState loaded, LoadLiveState(net.get(), Options()));
  EXPECT_TRUE(loaded.is_mapped) << "the workers are on this host";
  Values expected = At(1);
  for (auto& [name, value] : expected)
    if (value.is_floating_point()) value = value.to(torch::kBFloat16);
  ExpectEqual(ValuesOf(*net), expected);
}

// Has one of the job's tensors, whose other name it has not, and one that the job has not.
struct OtherNamesImpl : torch::nn::Module {
  explicit OtherNamesImpl(int64_t rows) {
    table = register_parameter("table", torch::zeros({rows, 3}));
    more = register_parameter("more", torch::full({2}, 5.0));
  }
  torch::Tensor table, more;
};

TEST_F(LiveModuleTest, MissingAndUnexpectedNamesAreReportedAndStrictlyChangeNothing) {
  Start({2, 2});
  TrainOneStep();
  OtherNamesImpl module(5);
  const Values before = ValuesOf(module);
  const auto strict = LoadLiveState(&module, Options());
  EXPECT_THAT(strict.status(),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("Missing in the job: more."), HasSubstr("Unexpected: "),
                             HasSubstr("first.linear.weight"), HasSubstr("norm.running_mean"))));
  ExpectEqual(ValuesOf(module), before);

  LiveModule options = Options();
  options.strict = false;
  ASSERT_OK_AND_ASSIGN(const LoadedLiveState loaded, LoadLiveState(&module, options));
  EXPECT_THAT(loaded.missing, ElementsAre("more"));
  EXPECT_THAT(loaded.unexpected, ::testing::Contains("frozen"));
  EXPECT_TRUE(torch::equal(module.table, At(1).at("table")));
  EXPECT_TRUE(torch::equal(module.more, before.at("more")));

  // What is left out is neither.
  options = Options();
  options.names.include = {"table"};
  ASSERT_OK_AND_ASSIGN(const LoadedLiveState some, LoadLiveState(&module, options));
  EXPECT_TRUE(some.missing.empty());
  EXPECT_TRUE(some.unexpected.empty());

  // Under another name, and its alias in the job is one too.
  OtherNamesImpl renamed(5);
  options = Options();
  options.names.renames = {{"output", "more"}};
  options.names.include = {"table", "more"};
  EXPECT_THAT(LoadLiveState(&renamed, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'more' is [2], the job's")));
  ExpectEqual(ValuesOf(renamed), ValuesOf(OtherNamesImpl(5)));
  options.names.renames = {{"output", "table"}, {"table", "none"}};
  options.names.include = {"table"};
  ASSERT_OK(LoadLiveState(&renamed, options).status());
  EXPECT_TRUE(torch::equal(renamed.table, At(1).at("table")));
  options.names.renames = {{"first.linear.weight", "table"}};
  EXPECT_THAT(LoadLiveState(&renamed, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("are both 'table'")));
}

TEST_F(LiveModuleTest, AnythingThatDoesNotFitIsAnErrorByNameAndChangesNothing) {
  Start({2, 2});
  LiveModule options = Options();
  auto net = OtherNet();
  EXPECT_THAT(LoadLiveState(net.get(), options).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("live")));
  TrainOneStep();
  OtherNamesImpl rows(6);
  options.strict = false;
  EXPECT_THAT(LoadLiveState(&rows, options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("'table' is [6, 3], the job's 'table' [5, 3]")));
  ExpectEqual(ValuesOf(rows), ValuesOf(OtherNamesImpl(6)));

  net->seen.set_data(torch::zeros({}, torch::kFloat32));  // The job's counts in integers.
  const Values before = ValuesOf(*net);
  EXPECT_THAT(LoadLiveState(net.get(), options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'seen'")));
  ExpectEqual(ValuesOf(*net), before);
  options.buffers = false;
  options.strict = true;
  ASSERT_OK(LoadLiveState(net.get(), options).status());
  Values expected = At(1);
  for (const auto& item : net->named_buffers()) expected[item.key()] = item.value().clone();
  ExpectEqual(ValuesOf(*net), expected);
}

// What libtorch would refuse or mix up in the middle is refused before.
TEST_F(LiveModuleTest, ElementsInOnePlaceAndPartsOfOthersAreRefusedAndInferenceTensorsAreSet) {
  Start({2, 2});
  TrainOneStep();
  LiveModule options = Options();
  options.strict = false;
  OtherNamesImpl module(5);
  const auto refused = [&](const std::string& text) {
    const Values before = ValuesOf(module);
    EXPECT_THAT(LoadLiveState(&module, options).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
    ExpectEqual(ValuesOf(module), before);
  };
  module.table.set_data(torch::zeros({1, 3}).expand({5, 3}));
  refused("'table' has several elements in one place");
  const torch::Tensor other = At(1).at("first.linear.weight");
  const torch::Tensor both = torch::zeros({15 + other.numel()});
  module.table.set_data(both.narrow(0, 0, 15).view({5, 3}));
  module.more.set_data(both.narrow(0, 10, other.numel()).view(other.sizes()));
  options.names.renames = {{"first.linear.weight", "more"}};
  refused("'table' and 'more' share elements");
  module.more.set_data(both.narrow(0, 15, other.numel()).view(other.sizes()));
  ASSERT_OK(LoadLiveState(&module, options).status()) << "side by side";
  EXPECT_TRUE(torch::equal(module.more, other));
  options.names.renames = {};
  {
    const c10::InferenceMode inference;
    module.table = torch::zeros({5, 3});
  }
  ASSERT_TRUE(module.table.is_inference());
  auto of_inference = std::make_shared<torch::nn::Module>();
  of_inference->register_parameter("table", module.table, /*requires_grad=*/false);
  ASSERT_OK(LoadLiveState(of_inference.get(), options).status());
  EXPECT_TRUE(torch::equal(of_inference->named_parameters()["table"], At(1).at("table")));
}

TEST_F(LiveModuleTest, TensorsWithoutElementsOfTheirOwnAreRefusedByNameAndOnlyWhereTheyAreSet) {
  Start({2, 2});
  TrainOneStep();
  LiveModule options = Options();
  options.strict = false;
  options.names.include = {"table", "more"};
  OtherNamesImpl module(5);
  torch::Tensor beyond = torch::zeros({5, 3}), unread = torch::zeros({5, 3});
  beyond.storage().set_nbytes(8);
  const std::vector<std::pair<torch::Tensor, std::string>> cases = {
      {torch::zeros({5, 3}).to_sparse(), "'table' is Sparse, so it cannot be set"},
      {torch::zeros({5, 3}).to_sparse_csr(), "'table' is SparseCsr, so it cannot be set"},
      {torch::zeros({5, 3}, torch::kMeta), "'table' is on the meta device"},
      {beyond, "'table' needs 60 bytes of its storage, which has 8"},
      {torch::_efficientzerotensor({5, 3}, torch::kFloat), "'table' is zeroes without memory"},
      {torch::quantize_per_tensor(unread, 0.5, 0, torch::kQInt8), "'table' is QInt8, the job's"}};
  for (const auto& [tensor, text] : cases) {
    SCOPED_TRACE(text);
    for (const bool is_buffer : {false, true}) {
      torch::nn::Module other;
      torch::Tensor more = torch::full({2}, 5.0);
      if (is_buffer) {
        other.register_buffer("table", tensor);
      } else {
        other.register_parameter("table", tensor, /*requires_grad=*/false);
      }
      other.register_parameter("more", more, /*requires_grad=*/false);
      EXPECT_THAT(LoadLiveState(&other, options).status(),
                  StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
      EXPECT_TRUE(torch::equal(more, torch::full({2}, 5.0)));
      // Where it is left out, the others are set.
      LiveModule without = options;
      without.names.include = {"more"};
      without.names.renames = {{"first.bend", "more"}};
      more.resize_({1, 3});
      ASSERT_OK(LoadLiveState(&other, without).status());
      EXPECT_TRUE(torch::equal(more, At(1).at("first.bend")));
    }
  }
  options.names.include = {"table"};
  ASSERT_OK(LoadLiveState(&module, options).status());
  EXPECT_TRUE(torch::equal(module.table, At(1).at("table")));
}

TEST_F(LiveModuleTest, TensorThatTheJobHasTwiceWithOtherValuesIsRefused) {
  Start({2, 2});
  TrainOneStep();
  auto module = std::make_shared<torch::nn::Module>();
  auto first = std::make_shared<torch::nn::Module>(),
       second = std::make_shared<torch::nn::Module>();
  const torch::Tensor bend = torch::zeros({1, 3});
  first->register_parameter("bend", bend);
  second->register_parameter("bend", bend);
  module->register_module("first", first);
  module->register_module("second", second);
  LiveModule options = Options();
  options.strict = false;
  const torch::Tensor tied = first->named_parameters()["bend"];
  if (tied.unsafeGetTensorImpl() != second->named_parameters()["bend"].unsafeGetTensorImpl())
    GTEST_FAIL() << "libtorch made two of one";
  EXPECT_THAT(LoadLiveState(module.get(), options).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("first.bend"), HasSubstr("second.bend"))));
  EXPECT_TRUE(torch::equal(tied, torch::zeros({1, 3})));
  // One of them alone says what it is.
  options.names.renames = {{"second.", "gone."}};
  ASSERT_OK(LoadLiveState(module.get(), options).status());
  EXPECT_TRUE(torch::equal(tied, At(1).at("first.bend")));
}

}  // namespace
}  // namespace tessera
