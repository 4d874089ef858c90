// What trainers do to gradients on their way: compression, and functions of their own.
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tessera/local_cluster.h"
#include "tessera/session.h"
#include "tessera/session_options.h"
#include "tests/testing/flight_log.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::FlightOp;
using testing_support::InitializeToy;
using testing_support::ReadAll;
using testing_support::ReadFlightLog;
using testing_support::ToyOptions;
using testing_support::ToyStep;
using testing_support::TrainerTeam;

constexpr int kWorldSize = 3;
constexpr Strategy kStrategies[] = {Strategy::kFullShard, Strategy::kShardGradOp,
                                    Strategy::kNoShard};

class CommHookTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 12 * kWorldSize;
    ASSERT_OK_AND_ASSIGN(cluster_, LocalCluster::Start(options));
  }
  SessionOptions OptionsFor(const std::string& job) {
    return ToyOptions(*cluster_, job, kWorldSize);
  }
  // Trains three steps on every rank; `prepare` comes before the first.
  std::vector<float> Train(const SessionOptions& options,
                           const std::function<absl::Status(Session*)>& prepare = nullptr) {
    std::vector<float> result;
    auto team = TrainerTeam::Open(options);
    EXPECT_OK(team);
    if (!team.ok()) return result;
    EXPECT_OK(team->RunAll([&](Session* session) -> absl::Status {
      RETURN_IF_ERROR(InitializeToy(session));
      if (prepare) RETURN_IF_ERROR(prepare(session));
      for (int64_t step = 1; step <= 3; ++step) RETURN_IF_ERROR(ToyStep(session, step));
      ASSIGN_OR_RETURN(const std::vector<float> values, ReadAll(session));
      if (session->rank() == 0) result = values;
      return absl::OkStatus();
    }));
    return result;
  }
  // Of each reduction in step 2.
  std::vector<int64_t> ReducedBytes(const std::string& job) {
    std::vector<int64_t> bytes;
    for (const FlightOp& op : ReadFlightLog(cluster_->worker_address(), job, 0))
      if (op.op == "reduce" && op.step == 2) bytes.push_back(op.bytes);
    return bytes;
  }
  std::unique_ptr<LocalCluster> cluster_;
};

// Gives the whole unit this gradient, and reduces it.
absl::Status ReduceConstant(Session* session, int unit, float value) {
  const auto& parameters = session->layout().units[unit].flat.parameters();
  for (size_t p = 0; p < parameters.size(); ++p) {
    RETURN_IF_ERROR(session->AddGradient(unit, p, std::vector<float>(parameters[p].numel, value)));
  }
  return session->Reduce(unit);
}

// What every element of the unit's reduced gradient is.
absl::Status ExpectGradient(Session* session, int unit, float expected) {
  return session->ReadGradients(unit, [&](int p, absl::Span<const float> values) {
    for (const float value : values) ASSERT_EQ(value, expected) << "parameter " << p;
  });
}

int64_t Elements(const Session& session, int unit) {
  int64_t count = 0;
  for (const PlacedParameter& p : session.layout().units[unit].flat.parameters()) count += p.numel;
  return count;
}

TEST_F(CommHookTest, WithoutOneAGradientIsTheMeanOverTheRanks) {  // HOOK-1
  for (const Strategy strategy : kStrategies) {
    SessionOptions options = OptionsFor(absl::StrCat("mean", static_cast<int>(strategy)));
    options.config.strategy = strategy;
    ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
    ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
      RETURN_IF_ERROR(InitializeToy(session));
      for (int step = 0; step < 4; ++step) {
        RETURN_IF_ERROR(ReduceConstant(session, 1, session->rank()));
        RETURN_IF_ERROR(ExpectGradient(session, 1, (kWorldSize - 1) / 2.0f));
        RETURN_IF_ERROR(session->Step().status());
      }
      return absl::OkStatus();
    }));
  }
}

TEST_F(CommHookTest, CompressionGivesTheBitsAndTheBytesOfThatReduceDType) {  // HOOK-2, HOOK-7
  for (const DType dtype : {DType::kBf16, DType::kFp16}) {
    SessionOptions plain = OptionsFor(absl::StrCat("reduce", Name(dtype)));
    plain.config.reduce_dtype = dtype;
    const std::vector<float> expected = Train(plain);
    const std::vector<int64_t> bytes = ReducedBytes(plain.job_id);
    ASSERT_EQ(bytes.size(), 3);
    for (const Strategy strategy : kStrategies) {
      SessionOptions options =
          OptionsFor(absl::StrCat("hook", Name(dtype), static_cast<int>(strategy)));
      options.config.strategy = strategy;
      const CommHook hook = dtype == DType::kBf16 ? Bf16Compression() : Fp16Compression();
      EXPECT_EQ(Train(options, [&](Session* s) { return s->RegisterCommHook(hook); }), expected);
      EXPECT_EQ(ReducedBytes(options.job_id), bytes);
    }
  }
}

// The parameter's elements in `values`, which begin with element `begin` of the unit.
absl::Span<float> ElementsOf(const PlacedParameter& parameter, int64_t begin,
                             absl::Span<float> values) {
  const ElementRange part =
      Intersect({parameter.offset_elements, parameter.offset_elements + parameter.numel},
                {begin, begin + static_cast<int64_t>(values.size())});
  return part.empty() ? absl::Span<float>() : values.subspan(part.begin - begin, part.size());
}

// Sees that frozen parameters have zeroes there, and writes something else.
absl::Status SpoilFrozen(const UnitLayout& unit, int64_t begin, absl::Span<float> values) {
  for (const PlacedParameter& parameter : unit.flat.parameters()) {
    if (parameter.spec.requires_grad) continue;
    for (float& value : ElementsOf(parameter, begin, values)) {
      EXPECT_EQ(value, 0) << parameter.spec.name;
      value = 1e6f;
    }
  }
  return absl::OkStatus();
}

TEST_F(CommHookTest, FrozenParametersHaveZeroesAndWhatAHookWritesThereCountsNowhere) {
  SessionOptions options = OptionsFor("plain");
  options.model = testing_support::ToyModel(3, /*with_frozen=*/true);
  options.config.optimizer = OptimizerKind::kSgd;
  options.config.max_gradient_norm = 0.5;
  const std::vector<float> expected = Train(options);
  ASSERT_FALSE(expected.empty());
  options.job_id = "hooked";
  const std::vector<float> hooked = Train(options, [](Session* session) {
    CommHook hook;
    hook.before = [session](int unit, absl::Span<float> gradient) {
      return SpoilFrozen(session->layout().units[unit], 0, gradient);
    };
    hook.after = [session](int unit, absl::Span<float> shard) {
      const UnitLayout& layout = session->layout().units[unit];
      return SpoilFrozen(layout, layout.shards.RangeOf(Rank(session->rank())).begin, shard);
    };
    return session->RegisterCommHook(hook);
  });
  EXPECT_THAT(hooked, testing::Pointwise(testing::FloatNear(1e-6f), expected));
}

TEST_F(CommHookTest, OneUnitMayBeCompressedWhateverTheReduceDTypeIs) {
  const SessionOptions plain = OptionsFor("plain");
  const std::vector<float> uncompressed = Train(plain);
  const SessionOptions options = OptionsFor("unit");
  const std::vector<float> values =
      Train(options, [](Session* s) { return s->RegisterCommHook(1, Bf16Compression()); });
  EXPECT_NE(values, uncompressed);
  const std::vector<int64_t> full = ReducedBytes("plain"), bytes = ReducedBytes("unit");
  ASSERT_EQ(full.size(), 3);
  EXPECT_EQ(bytes, (std::vector<int64_t>{full[0], full[1] / 2, full[2]}));

  SessionOptions half = OptionsFor("half");
  half.config.reduce_dtype = DType::kBf16;
  const CommHook in_full = {DType::kFp32, nullptr, nullptr};
  EXPECT_EQ(Train(half, [&](Session* s) { return s->RegisterCommHook(in_full); }), uncompressed)
      << "fp32 where the job says bf16";
}

TEST_F(CommHookTest, FunctionsSeeTheWholeGradientBeforeAndTheShardAfterOnceEach) {  // HOOK-6
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor("functions")));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    std::vector<std::string> calls;  // What a hook's state is: captured.
    CommHook hook;
    hook.before = [&](int unit, absl::Span<float> gradient) {
      calls.push_back(absl::StrCat("before ", unit));
      EXPECT_EQ(gradient.size(), session->layout().units[unit].shards.padded_numel());
      for (float& element : gradient) element += 4;  // Padding too.
      return absl::OkStatus();
    };
    hook.after = [&](int unit, absl::Span<float> shard) {
      calls.push_back(absl::StrCat("after ", unit));
      EXPECT_EQ(shard.size(), session->layout().units[unit].shards.shard_numel());
      for (float& element : shard) element = element * 3 + 1;
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(session->RegisterCommHook(1, hook));
    RETURN_IF_ERROR(ReduceConstant(session, 1, session->rank()));
    RETURN_IF_ERROR(ReduceConstant(session, 1, session->rank()));
    RETURN_IF_ERROR(ReduceConstant(session, 0, 0));
    const float mean = (kWorldSize - 1) / 2.0f;
    RETURN_IF_ERROR(ExpectGradient(session, 1, 2 * (mean + 4)));
    StepOptions nothing;
    nothing.learning_rate_scale = 0;
    ASSIGN_OR_RETURN(const StepResult result, session->Step(nothing));
    EXPECT_THAT(calls, testing::ElementsAre("before 1", "before 1", "after 1"));
    // Padding does not count.
    const double element = 2 * (mean + 4) * 3 + 1;
    EXPECT_NEAR(result.gradient_norm, element * std::sqrt(Elements(*session, 1)), 1e-3);
    return absl::OkStatus();
  }));
}

TEST_F(CommHookTest, SecondOneIsRefusedByNameAndSoIsWhatMeansNothing) {  // HOOK-3, HOOK-5
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor("refused")));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    RETURN_IF_ERROR(session->RegisterCommHook(2, Fp16Compression()));
    const auto again = StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("'unit2'"));
    EXPECT_THAT(session->RegisterCommHook(2, Bf16Compression()), again);
    EXPECT_THAT(session->RegisterCommHook(Bf16Compression()), again);
    EXPECT_OK(session->RegisterCommHook(1, Fp16Compression())) << "none was registered before";
    EXPECT_THAT(session->RegisterCommHook(3, Fp16Compression()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no unit 3")));
    EXPECT_THAT(session->RegisterCommHook(0, CommHook()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("does nothing")));
    EXPECT_THAT(session->RegisterCommHook(0, {DType::kFp64, nullptr, nullptr}),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fp64")));
    RETURN_IF_ERROR(ReduceConstant(session, 1, 1));
    EXPECT_THAT(session->RegisterCommHook(0, Fp16Compression()),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("between steps")));
    return session->Step().status();
  }));
}

TEST_F(CommHookTest, RanksThatCompressDifferentlyAreToldBothDTypes) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor("differ")));
  for (const absl::Status& status : team.Run([](Session* session) -> absl::Status {
         RETURN_IF_ERROR(InitializeToy(session));
         if (session->rank() == 1) RETURN_IF_ERROR(session->RegisterCommHook(Fp16Compression()));
         return ToyStep(session, 1);
       })) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                 testing::AllOf(HasSubstr("fp16"), HasSubstr("fp32"))));
  }
}

TEST_F(CommHookTest, ErrorOfAFunctionIsEveryRanksAndTrainingGoesOn) {
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(OptionsFor("fails")));
  ASSERT_OK(team.RunAll([](Session* session) -> absl::Status {
    RETURN_IF_ERROR(InitializeToy(session));
    bool fails = session->rank() == 2;
    CommHook hook;
    hook.before = [&](int, absl::Span<float>) {
      return fails ? absl::InternalError("the hook broke") : absl::OkStatus();
    };
    RETURN_IF_ERROR(session->RegisterCommHook(hook));
    EXPECT_THAT(session->RunStep([&] { return ToyStep(session, 1); }),
                StatusIs(absl::StatusCode::kInternal, HasSubstr("the hook broke")));
    fails = false;
    return session->RunStep([&] { return ToyStep(session, 1); });
  }));
}

}  // namespace
}  // namespace tessera
