// Which values clients may set in jobs that train, and what becomes of each dtype, name and
// refusal: in a job whose own steps change nothing.
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/session/session_buffers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kernels.h"
#include "tests/integration/live_put_fixture.h"
#include "tests/testing/live_puts.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::CliResult;
using testing_support::LiveReading;
using testing_support::PutOutcome;
using testing_support::PutValue;
using testing_support::PutWhileTraining;
using testing_support::ReadStored;
using testing_support::RunTessera;
using testing_support::StoredValues;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;
using testing_support::WritePutFile;

// A model of all dtypes, with tied weights, whose trainers' steps change nothing.
class LivePutIdleTest : public LivePutTest {
 protected:
  void Start(DType compute_dtype = DType::kFp32) {
    cluster_ = StartCluster({"", 1, 2, 2});
    SessionOptions options = ToyOptions(*cluster_, "toy", 2);
    options.model = {{{"root", {{"a", {5}, DType::kFp32}, {"empty", {0}, DType::kFp32}}},
                      {"wide", {{"b", {7, 3}, DType::kFp64}}},
                      {"tied", {{"c", {9}, DType::kFp32}, {"too", {9}, DType::kFp32, true, "c"}}}}};
    options.model.buffers = {{"stats", StoredDType::kF32, {4}}};
    options.config.compute_dtype = compute_dtype;
    auto team = TrainerTeam::Open(options);
    ASSERT_OK(team);
    team_ = std::make_unique<TrainerTeam>(*std::move(team));
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->Initialize(
          [](int, int, Values values) { memset(values.data(), 0, values.size_bytes()); });
    }));
    initial_ = Read(*cluster_).values;
  }
  PutOutcome PutIdle(std::vector<std::string> args) {
    return PutWhileTraining(cluster_->coordinator_address(), "toy", std::move(args),
                            Path("now.safetensors"), [this] { Step(); });
  }
  void Step() {
    ASSERT_OK(team_->RunAll([](Session* session) {
      return session->RunStep([&] { return session->Step().status(); });
    }));
  }
  // The put fails with this, and nothing changes.
  void ExpectRefusal(std::vector<std::string> args, const std::string& code,
                     const std::string& text) {
    const PutOutcome put = PutIdle(std::move(args));
    EXPECT_NE(put.result.exit_code, 0);
    EXPECT_FALSE(put.applied);
    EXPECT_THAT(put.result.err, AllOf(HasSubstr(code), HasSubstr(text)));
    EXPECT_EQ(Read(*cluster_).values, initial_);
  }

  std::unique_ptr<LocalCluster> cluster_;
  std::unique_ptr<TrainerTeam> team_;
  StoredValues initial_;
};

TEST_F(LivePutIdleTest, ElementsAreRoundedOrWidenedToWhatTheJobKeeps) {
  Start();
  const std::string path = Path("put.safetensors");
  for (const DType dtype : {DType::kFp32, DType::kBf16, DType::kFp16, DType::kFp64}) {
    WritePutFile(
        path, {{"a", {5}, dtype}, {"empty", {0}, dtype}, {"b", {7, 3}, dtype}, {"c", {9}, dtype}});
    const PutOutcome put = PutIdle({"--from", path});
    ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
    const auto expected = [&](const std::string& name, int64_t i) {
      float value = PutValue(name, i);
      uint16_t half = 0;
      if (IsHalf(dtype)) {
        host::CastFp32ToHalf(dtype, &value, &half, 1);
        host::CastHalfToFp32(dtype, &half, &value, 1);
      }
      return value;
    };
    const auto* a = reinterpret_cast<const float*>(put.after.values.at("a").second.data());
    for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(a[i], expected("a", i));
    const auto* b = reinterpret_cast<const double*>(put.after.values.at("b").second.data());
    for (int64_t i = 0; i < 21; ++i) EXPECT_EQ(b[i], static_cast<double>(expected("b", i)));
  }
}

TEST_F(LivePutIdleTest, TrainersOfALowPrecisionSeeItRounded) {
  cluster_ = StartCluster({"", 1, 2, 2});
  SessionOptions options = ToyOptions(*cluster_, "toy", 2);
  options.config.compute_dtype = DType::kBf16;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  team_ = std::make_unique<TrainerTeam>(std::move(team));
  ASSERT_OK(team_->RunAll(testing_support::InitializeToy));
  WritePutFile(Path("put.safetensors"), AllParameters(ToyModel(3)));
  const PutOutcome put = PutIdle({"--from", Path("put.safetensors")});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  for (const auto& [name, tensor] : ReadStored(Path("put.safetensors")))
    EXPECT_EQ(put.after.values.at(name), tensor) << "the master copy of " << name;
  ASSERT_OK(team_->RunAll([](Session* session) -> absl::Status {
    for (int unit = 0; unit < session->num_units(); ++unit) {
      RETURN_IF_ERROR(session->Unshard(unit));
      const auto& parameters = session->layout().units[unit].flat.parameters();
      for (size_t p = 0; p < parameters.size(); ++p) {
        const auto* seen = reinterpret_cast<const uint16_t*>(session->parameter(unit, p));
        for (int64_t i = 0; i < parameters[p].numel; ++i) {
          const float value = PutValue(parameters[p].spec.name, i);
          uint16_t rounded = 0;
          host::CastFp32ToHalf(DType::kBf16, &value, &rounded, 1);
          EXPECT_EQ(seen[i], rounded) << parameters[p].spec.name << " " << i;
        }
      }
      RETURN_IF_ERROR(session->Reshard(unit));
    }
    return absl::OkStatus();
  }));
}

TEST_F(LivePutIdleTest, TiedWeightsAreSetByAnyOfTheirNamesAndNotToTwoValues) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"c", {9}}, {"too", {9}}});
  ExpectRefusal({"--from", path}, "INVALID_ARGUMENT",
                "tensor 'too': it is tied to 'c', and has other values");
  WritePutFile(path, {{"c", {9}}, {"too", {9}, DType::kBf16}});
  ExpectRefusal({"--from", path}, "INVALID_ARGUMENT", "are one parameter, but have two");
  WritePutFile(path, {{"c", {9}}, {"too", {9}}}, {{"c", "too"}});
  const PutOutcome both = PutIdle({"--from", path});
  ASSERT_EQ(both.result.exit_code, 0) << both.result.err;
  EXPECT_THAT(both.result.out, HasSubstr("has 1 tensors"));
  EXPECT_EQ(both.after.values.at("c"), ReadStored(path).at("too"));
  WritePutFile(path, {{"too", {9}}}, {{"too", "another"}});
  const PutOutcome alias = PutIdle({"--from", path});
  ASSERT_EQ(alias.result.exit_code, 0) << alias.result.err;
  EXPECT_EQ(alias.after.values.at("c"), ReadStored(path).at("too"));
}

TEST_F(LivePutIdleTest, WhatDoesNotFitIsRefusedByNameAndChangesNothing) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"a", {5}}, {"x", {2}}});
  ExpectRefusal({"--from", path}, "NOT_FOUND", "the job has no tensor 'x'");
  WritePutFile(path, {{"a", {5}}, {"b", {3, 7}}});
  ExpectRefusal({"--from", path}, "INVALID_ARGUMENT",
                "parameter 'b': its shape is [7, 3], but the put has [3, 7]");
  ExpectRefusal({"--from", path, "--include", "none"}, "NOT_FOUND",
                "no tensor of the file is selected");
  ExpectRefusal({"--from", path, "--exclude", "b", "--moments"}, "NOT_FOUND", "no moments");
  ExpectRefusal({"--from", path, "--wait", "soon"}, "INVALID_ARGUMENT", "--wait soon");
  ExpectRefusal({"--from", Path("none")}, "NOT_FOUND", "none");
  const PutOutcome rest = PutIdle({"--from", path, "--exclude", "b"});
  EXPECT_EQ(rest.result.exit_code, 0) << rest.result.err;
}

TEST_F(LivePutIdleTest, StoredNamesAreRenamedAsLoadsDoAndTwoOfOneNameAreRefused) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"old.a", {5}}, {"old.b", {7, 3}, DType::kFp64}, {"other", {9}}});
  ExpectRefusal({"--from", path}, "NOT_FOUND", "the job has no tensor 'old.a'");
  ExpectRefusal({"--from", path, "--rename", "old.=", "--rename", "other=x"}, "NOT_FOUND",
                "the job has no tensor 'x', to which 'other' is renamed");
  ExpectRefusal({"--from", path, "--rename", "old.=", "--rename", "other=a"}, "INVALID_ARGUMENT",
                "tensors 'old.a' and 'other' are both 'a' in the job");
  ExpectRefusal({"--from", path, "--rename", "old."}, "INVALID_ARGUMENT", "is not OLD=NEW");
  // The first that fits counts; patterns are of names in the job.
  const PutOutcome put = PutIdle({"--from", path, "--rename", "other=too", "--rename",
                                  "old.=", "--rename", "old.a=c", "--exclude", "b"});
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  const StoredValues stored = ReadStored(path);
  EXPECT_EQ(put.after.values.at("a"), stored.at("old.a"));
  EXPECT_EQ(put.after.values.at("c"), stored.at("other"));
  EXPECT_EQ(put.after.values.at("b"), initial_.at("b"));
}

TEST_F(LivePutIdleTest, StepThatIsSkippedForANaNTakesItToo) {
  Start();
  const std::string path = Path("put.safetensors");
  WritePutFile(path, {{"a", {5}}, {"stats", {4}}});
  const PutOutcome put = PutWhileTraining(
      cluster_->coordinator_address(), "toy", {"--from", path}, Path("now.safetensors"), [this] {
        ASSERT_OK(team_->RunAll([](Session* session) -> absl::Status {
          RETURN_IF_ERROR(session->Unshard(0));
          RETURN_IF_ERROR(session->Reshard(0));
          RETURN_IF_ERROR(session->AddGradient(0, 0, std::vector<float>(5, std::nanf(""))));
          RETURN_IF_ERROR(session->Reduce(0));
          StepOptions options;
          options.skip_non_finite = true;
          ASSIGN_OR_RETURN(const StepResult result, session->Step(options));
          EXPECT_TRUE(result.skipped);
          return absl::OkStatus();
        }));
      });
  ASSERT_EQ(put.result.exit_code, 0) << put.result.err;
  ASSERT_TRUE(put.applied);
  EXPECT_EQ(put.after.values.at("a"), ReadStored(path).at("a"));
  EXPECT_EQ(put.after.values.at("c"), initial_.at("c"));
  EXPECT_EQ(put.after.step, 0) << "no step was taken";
  EXPECT_EQ(put.after.values.at("stats"), ReadStored(path).at("stats"));
  for (int rank = 0; rank < 2; ++rank) {
    const SessionBuffers buffers(team_->session(rank));
    EXPECT_TRUE(buffers.IsGiven(0));
    EXPECT_TRUE(buffers.Get(0) == ReadStored(path).at("stats").second);
  }
}

TEST_F(LivePutIdleTest, WithoutAStepInTimeNothingIsChanged) {
  Start();
  WritePutFile(Path("put.safetensors"), {{"a", {5}}});
  const CliResult put =
      RunTessera(cluster_->coordinator_address(),
                 {"put", "--job", "toy", "--from", Path("put.safetensors"), "--wait", "50ms"});
  EXPECT_THAT(put.err, AllOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("took no step within 50ms"),
                             HasSubstr("nothing was changed")));
  for (int i = 0; i < 3; ++i) Step();
  const LiveReading now = Read(*cluster_);
  EXPECT_EQ(now.values, initial_);
  EXPECT_EQ(now.committed_step, now.step);
}

}  // namespace
}  // namespace tessera
