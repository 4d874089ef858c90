// What a user gets wrong, through the public surface: each is refused with a code and the name of
// the thing, and harms nobody. docs/reference/errors.md is the list.
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "client/rpc/job_rpc.h"
#include "gtest/gtest.h"
#include "layout/layout_digest.h"
#include "tests/testing/toy_cluster.h"
#include "tests/testing/toy_training.h"
#include "tests/testing/trainer_team.h"
#include "worker/service/worker_server.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::ExpectNear;
using testing_support::ReadAll;
using testing_support::ReferenceRun;
using testing_support::ToyModel;
using testing_support::ToyOptions;
using testing_support::TrainerTeam;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class BadInputTest : public testing::Test {
 protected:
  void SetUp() override {
    LocalCluster::Options options;
    options.num_devices = 2;
    auto cluster = LocalCluster::Start(options);
    ASSERT_OK(cluster);
    cluster_ = *std::move(cluster);
  }
  SessionOptions Options(int world_size = 1) { return ToyOptions(*cluster_, "toy", world_size); }
  absl::Time Soon() { return absl::Now() + absl::Seconds(10); }
  absl::Status Attach(const SessionOptions& options, int rank, int world_size,
                      absl::Time deadline) {
    ASSIGN_OR_RETURN(const ModelLayout layout,
                     ModelLayout::Create(options.model, options.config.layout, world_size));
    v1::AttachRequest request;
    request.set_job_id(options.job_id);
    request.set_rank(rank);
    request.set_world_size(world_size);
    request.set_layout_digest(LayoutDigest(layout));
    const auto job = GetJob({cluster_->coordinator_address()}, options.job_id, Soon());
    if (job.ok()) request.set_generation(job->generation());
    return AttachToRank(options.worker_address, request, /*wait_if_attached=*/false, deadline)
        .status();
  }

  std::unique_ptr<LocalCluster> cluster_;
};

TEST_F(BadInputTest, UnknownJobIsNamedByCoordinatorAndWorker) {
  v1::DeleteJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_job_id("t5");
  EXPECT_THAT(GetJob({cluster_->coordinator_address()}, "t5", Soon()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no job 't5'")));
  EXPECT_THAT(DeleteJob({cluster_->coordinator_address()}, request, Soon()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no job 't5'")));
  // The worker may not have heard of it yet, so the client asks again until its deadline.
  EXPECT_THAT(Attach(Options(), 0, 1, absl::Now() + absl::Seconds(2)),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("worker 'local' has no job 'toy'"), HasSubstr("NOT_FOUND"),
                             Not(HasSubstr("Retry")))));
}

TEST_F(BadInputTest, WrongRankOrWorldSizeAtTheWorkerIsNamed) {
  const SessionOptions options = Options(2);
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  EXPECT_THAT(Attach(options, 2, 2, Soon()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("job 'toy': no rank 2 of 2")));
  EXPECT_THAT(Attach(options, -2, 2, Soon()),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("no rank -2 of 2")));
  EXPECT_THAT(Attach(options, 0, 3, Soon()),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("job 'toy' has world size 2, the trainer says 3")));
  const absl::Status attached_twice = Attach(options, 1, 2, Soon());
  EXPECT_THAT(attached_twice,
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr("rank 1 is attached")));
  EXPECT_THAT(attached_twice.ToString(), Not(HasSubstr("Retry")));
  EXPECT_OK(team.TrainTo(2)) << "and the trainers that were there go on";
}

struct BadModel {
  const char* name;
  void (*change)(SessionOptions*);
  const char* fragment;
};

class BadModelTest : public BadInputTest, public testing::WithParamInterface<BadModel> {};

TEST_P(BadModelTest, IsRefusedByNameBeforeAnyJobExists) {
  SessionOptions options = Options();
  GetParam().change(&options);
  EXPECT_THAT(Session::Open(options), StatusIs(kInvalid, HasSubstr(GetParam().fragment)));
  EXPECT_THAT(GetJob({cluster_->coordinator_address()}, "toy", Soon()),
              StatusIs(absl::StatusCode::kNotFound, testing::_));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadModelTest,
    testing::Values(
        BadModel{"IntegerDType",
                 [](SessionOptions* o) { o->model.units[1].parameters[0].dtype = DType::kInt64; },
                 "unit \"unit1\", parameter \"unit1.weight\": integer dtype int64"},
        BadModel{"MixedDTypes",
                 [](SessionOptions* o) { o->model.units[1].parameters[1].dtype = DType::kBf16; },
                 "parameter \"unit1.bias\": dtype bf16 differs from fp32 of \"unit1.weight\""},
        BadModel{"EmptyUnit", [](SessionOptions* o) { o->model.units[1].parameters.clear(); },
                 "unit \"unit1\": has no parameters"},
        BadModel{"ParameterInTwoUnits",
                 [](SessionOptions* o) { o->model.units[1].parameters[1].name = "unit0.bias"; },
                 "unit \"unit1\", parameter \"unit0.bias\": unit \"unit0\" has it too"},
        BadModel{"ShapeOverflow",
                 [](SessionOptions* o) {
                   o->model.units[1].parameters[0].shape = {int64_t{1} << 32, int64_t{1} << 32};
                 },
                 "unit \"unit1\": parameter \"unit1.weight\": shape"},
        BadModel{
            "TooLargeForMemory",
            [](SessionOptions* o) { o->model.units[1].parameters[0].shape = {int64_t{1} << 61}; },
            "unit1"},
        BadModel{"WorldSizeZero", [](SessionOptions* o) { o->config.world_size = 0; },
                 "world_size is 0"},
        BadModel{"LearningRateNan",
                 [](SessionOptions* o) { o->config.groups[0].learning_rate = NAN; },
                 "param group 0: learning_rate"},
        BadModel{"UnitNameNotUtf8", [](SessionOptions* o) { o->model.units[1].name = "a\xff"; },
                 "the name of unit 'a\\xff' is not UTF-8"},
        BadModel{"ParameterNameNotUtf8",
                 [](SessionOptions* o) { o->model.units[1].parameters[0].name = "\xc3"; },
                 "the name of parameter '\\xc3' is not UTF-8"},
        BadModel{"BufferNameNotUtf8",
                 [](SessionOptions* o) {
                   o->model.buffers = {{"\xed\xa0\x80", StoredDType::kF32, {1}}};
                 },
                 "is not UTF-8"},
        BadModel{"AttachTimeoutNegative",
                 [](SessionOptions* o) { o->attach_timeout = absl::Seconds(-1); },
                 "attach_timeout is -1s: it must be above 0"},
        BadModel{"OperationTimeoutZero",
                 [](SessionOptions* o) { o->operation_timeout = absl::ZeroDuration(); },
                 "operation_timeout is 0: it must be above 0"},
        BadModel{"RecoverTimeoutNegative",
                 [](SessionOptions* o) { o->recover_timeout = -absl::InfiniteDuration(); },
                 "recover_timeout is -inf: it must be above 0"}),
    [](const auto& info) { return info.param.name; });

TEST_F(BadInputTest, JobIdThatIsNotUtf8IsNamed) {
  SessionOptions options = Options();
  options.job_id = "a\xff";
  EXPECT_THAT(Session::Open(options),
              StatusIs(kInvalid, HasSubstr("job_id 'a\\xff' is not UTF-8")));
}

TEST_F(BadInputTest, WorkersAddressInTheCoordinatorsPlaceIsNamed) {
  SessionOptions options = Options();
  options.coordinator_address = options.worker_address;
  EXPECT_THAT(Session::Open(options),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(options.worker_address), HasSubstr("a worker's address"))));
}

TEST_F(BadInputTest, NanOrInfUnderClippingNamesTheUnitAndChangesNothing) {
  SessionOptions options = Options(2);
  options.config.max_gradient_norm = 0.5;
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  ASSERT_OK(team.TrainTo(1));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (float bad : {NAN, kInfinity, -kInfinity}) {
    SCOPED_TRACE(bad);
    std::vector<std::vector<float>> before(2), after(2);
    const auto read = [](std::vector<std::vector<float>>* into) {
      return [into](Session* session) -> absl::Status {
        ASSIGN_OR_RETURN((*into)[session->rank()], ReadAll(session));
        return absl::OkStatus();
      };
    };
    ASSERT_OK(team.RunAll(read(&before)));
    for (const absl::Status& status : team.Run([&](Session* session) -> absl::Status {
           const int64_t numel = session->layout().units[2].flat.parameters()[1].numel;
           std::vector<float> gradient(numel, 1.0f);
           if (session->rank() == 1) gradient.back() = bad;
           RETURN_IF_ERROR(session->AddGradient(2, 1, gradient));
           return session->Step().status();
         })) {
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("NaN or Inf"), HasSubstr("'unit2'"))));
    }
    ASSERT_OK(team.RunAll(read(&after)));
    EXPECT_EQ(before, after);
    EXPECT_EQ(team.session(0)->next_step(), 2);
  }
  ASSERT_OK(team.TrainTo(4));
}

TEST_F(BadInputTest, OperationInTheWrongStateNamesTheUnitAndTheNextEpochGoesOn) {
  SessionOptions options = Options();
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(options));
  EXPECT_THAT(session->Unshard(1), StatusIs(absl::StatusCode::kFailedPrecondition,
                                            AllOf(HasSubstr("'unit1'"),
                                                  HasSubstr("before the job has initial values"))));
  ASSERT_OK(session->Recover());
  ASSERT_OK(testing_support::TrainToy(session.get(), 1));
  EXPECT_THAT(session->Reshard(1),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'unit1'")));
  EXPECT_THAT(session->Reduce(7), StatusIs(kInvalid, HasSubstr("7")));
  const std::vector<float> weight(session->layout().units[1].flat.parameters()[0].numel);
  EXPECT_THAT(session->AddGradient(1, 0, absl::MakeSpan(weight).first(5)),
              StatusIs(kInvalid, AllOf(HasSubstr("'unit1.weight'"), HasSubstr("5"))));
  EXPECT_THAT(session->AddGradient(1, 9, weight), StatusIs(kInvalid, HasSubstr("9")));
  EXPECT_THAT(session->Save("relative/path"),
              StatusIs(kInvalid, HasSubstr("'relative/path' is not an absolute file path")));
  EXPECT_OK(testing_support::TrainToy(session.get(), 3));
}

TEST_F(BadInputTest, ForkedChildIsRefusedAndItsParentTrainsOn) {
  const SessionOptions options = Options();
  ASSERT_OK_AND_ASSIGN(TrainerTeam team, TrainerTeam::Open(options));
  Session* const session = team.session(0);
  std::vector<float> values;
  const std::vector<std::function<absl::Status()>> uses = {
      [&] { return session->Unshard(0); },
      [&] { return session->AddGradient(0, 0, values); },
      [&] { return session->Reduce(1); },
      [&] { return session->Step().status(); },
      [&] { return session->ClipGradNorm(1.0).status(); },
      [&] { return ReadAll(session).status(); },
      [&] { return session->EndForward(); },
      [&] { return session->DropGradients(); },
      [&] { return session->Recover(); },
      [&] {
        return session->Report({{"loss", 1}});
      },
      [&] { return session->Fail(absl::InternalError("of the child")); },
      [&] { return session->RunStep([] { return absl::AbortedError("again"); }); }};
  size_t next_use = 0;
  // In the middle of each step: some gradients are reduced, and one is about to be.
  const auto fork_child = [&](int, Values) -> absl::Status {
    const pid_t child = fork();
    if (child == 0) {
      const absl::Status status = uses[next_use]();
      const bool is_told = absl::IsFailedPrecondition(status) &&
                           absl::StrContains(status.message(), "a forked child cannot use");
      team.Close(0);  // Which takes nothing from the parent.
      _exit(is_told ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << next_use;
    ++next_use;
    return absl::OkStatus();
  };
  values.resize(session->layout().units[0].flat.parameters()[0].numel, 7.0f);
  ASSERT_OK(session->RegisterCommHook(1, {std::nullopt, fork_child, nullptr}));
  ASSERT_OK(team.TrainTo(static_cast<int64_t>(uses.size())));
  EXPECT_EQ(next_use, uses.size());
  ASSERT_OK_AND_ASSIGN(const std::vector<float> trained, ReadAll(session));
  ExpectNear(trained, ReferenceRun(options.model, options.config, session->next_step() - 1), 1e-5f);
}

TEST_F(BadInputTest, SecondWorkerInAFolderIsRefusedAndTheFirstGoesOn) {
  ASSERT_OK_AND_ASSIGN(auto session, Session::Open(Options()));
  WorkerServer::Options worker;
  worker.worker_id = "second";
  worker.coordinator_address = cluster_->coordinator_address();
  worker.socket_dir = cluster_->worker_address().substr(5);  // "unix:FOLDER/worker.sock"
  worker.socket_dir.resize(worker.socket_dir.rfind('/'));
  EXPECT_THAT(WorkerServer::Start(worker),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(worker.socket_dir)));
  EXPECT_OK(testing_support::TrainToy(session.get(), 2));
  session.reset();
  SessionOptions again = Options();
  again.wait_if_attached = true;  // The worker may not have seen the last one leave yet.
  EXPECT_OK(Session::Open(again)) << "its sockets are still there";
}

}  // namespace
}  // namespace tessera
