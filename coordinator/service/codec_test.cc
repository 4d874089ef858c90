#include "coordinator/service/codec.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "coordinator/core/order_validator.h"
#include "coordinator/service/field_checks.h"
#include "coordinator/service/journal_clock.h"
#include "coordinator/service/record_codec.h"
#include "coordinator/service/save_codec.h"
#include "coordinator/service/test_worker.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "job/field_limits.h"
#include "job/job_codec.h"

namespace tessera::coordinator {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

v1::CreateJobRequest Request() {
  v1::CreateJobRequest request = MakeCreateJob("r1", "gpt", 2);
  v1::ParamGroup* group = request.mutable_config()->mutable_optimizer()->add_groups();
  group->add_parameter_names("u0.q");
  group->set_beta1(0.9);
  group->set_beta2(0.95);
  group->set_epsilon(1e-8);
  group->set_weight_decay(0.1);
  group->set_momentum(0.5);
  v1::JobConfig* config = request.mutable_config();
  config->set_max_gradient_norm(1.5);
  config->set_gradient_norm_p(3.5);
  config->set_max_gathered_units(3);
  config->set_gradient_slots(2);
  config->set_collective_timeout_ms(12345);
  config->set_backward_prefetch(v1::BACKWARD_PREFETCH_PRE);
  v1::ParameterSpec* alias = request.mutable_model()->mutable_units(1)->add_parameters();
  *alias = request.model().units(1).parameters(0);
  alias->set_name("u0.tied");
  alias->set_shared_with("u0.q");
  return request;
}

TEST(CodecTest, SpecSurvivesTheRoundTrip) {
  const v1::CreateJobRequest request = Request();
  ASSERT_OK_AND_ASSIGN(const CreateJobEvent event, Decode(request));
  EXPECT_TRUE(MessageDifferencer::Equals(EncodeModel(event.spec->model), request.model()));
  EXPECT_TRUE(MessageDifferencer::Equals(EncodeJobConfig(event.spec->config), request.config()));
}

TEST(CodecTest, BadCreateJobFieldsAreNamed) {
  const auto refused = [](auto change, const char* what) {
    v1::CreateJobRequest request = Request();
    change(&request);
    EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr(what)));
  };
  using R = v1::CreateJobRequest;
  refused([](R* r) { r->clear_request_id(); }, "request_id");
  refused([](R* r) { r->set_job_id("Upper"); }, "job_id 'Upper'");
  refused([](R* r) { r->set_job_id("a/b"); }, "job_id");
  refused([](R* r) { r->set_job_id(std::string(64, 'a')); }, "1 to 63");
  refused([](R* r) { r->set_submitting_rank(-2); }, "submitting_rank");
  refused([](R* r) { r->mutable_config()->set_world_size(0); }, "world_size");
  refused([](R* r) { r->mutable_config()->clear_strategy(); }, "strategy");
  refused([](R* r) { r->mutable_config()->clear_compute_dtype(); }, "compute_dtype");
  refused([](R* r) { r->mutable_config()->set_reduce_dtype(static_cast<v1::DType>(77)); },
          "reduce_dtype: dtype 77");
  refused([](R* r) { r->mutable_config()->clear_optimizer(); }, "optimizer kind");
  refused([](R* r) { r->mutable_config()->set_collective_timeout_ms(-1); },
          "collective_timeout_ms");
  refused([](R* r) { r->mutable_model()->clear_units(); }, "unit");
  const auto parameter = [](R* r) {
    return r->mutable_model()->mutable_units(1)->mutable_parameters(2);
  };
  refused([&](R* r) { parameter(r)->clear_dtype(); }, "unit 'u0': parameter 'u0.v': dtype");
  refused([&](R* r) { parameter(r)->set_name(std::string(600, 'n')); }, "longer than 512");
  refused([&](R* r) { parameter(r)->set_shape(0, -1); }, "u0.v");
  refused([&](R* r) { parameter(r)->set_shape(0, std::numeric_limits<int64_t>::max()); }, "u0.v");
  refused(
      [&](R* r) {
        for (int i = 0; i < kMaxDimensions; ++i) parameter(r)->add_shape(1);
      },
      "number of dimensions is 18");
}

TEST(CodecTest, NumbersOfARankThatCannotBeAreNothing) {
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  const double kInfinity = std::numeric_limits<double>::infinity();
  for (const double value : {kNan, kInfinity, -kInfinity, -1.0, 2.5}) {
    v1::WorkerEvent event;
    v1::JobProgress* job = event.mutable_heartbeat()->add_jobs();
    job->set_job_id("gpt");
    (*job->mutable_ranks())[0].set_compute_seconds(value);
    (*job->mutable_ranks())[0].set_gradient_norm(value);
    ASSERT_OK_AND_ASSIGN(const StreamEvent decoded, Decode(event));
    const RankStatus& status = std::get<HeartbeatEvent>(decoded).at(0).ranks.at(0);
    EXPECT_EQ(status.compute_seconds, value == 2.5 ? 2.5 : 0.0) << value;
    EXPECT_EQ(status.gradient_norm, value == 2.5 ? 2.5 : 0.0) << value;
  }
}

TEST(CodecTest, BadSaveRequestsAndReportsAreNamed) {
  const auto refused = [](auto change, const char* what) {
    v1::RequestSaveRequest request;
    request.set_request_id("r1");
    request.set_job_id("gpt");
    request.mutable_spec()->set_path("/c");
    EXPECT_OK(Decode(request));
    change(&request);
    EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr(what)));
  };
  refused([](auto* r) { r->set_request_id(""); }, "request_id");
  refused([](auto* r) { r->set_job_id("No"); }, "job_id");
  for (const char* path : {"", "c", "/c/"})
    refused([&](auto* r) { r->mutable_spec()->set_path(path); }, "absolute path");
  refused([](auto* r) { r->mutable_spec()->set_path("/" + std::string(5000, 'c')); }, "5001 bytes");
  refused([](auto* r) { r->mutable_spec()->set_path("gs://bucket/c"); }, "no storage for gs://");
  refused([](auto* r) { r->mutable_spec()->set_path("file://host/c"); }, "absolute path");
  refused([](auto* r) { r->mutable_spec()->set_keep_newest(-1); }, "keep_newest -1");
  refused([](auto* r) { r->mutable_spec()->set_max_file_bytes(-1); }, "max_file_bytes -1");
  refused([](auto* r) { r->mutable_spec()->set_with_replicas(true); }, "with_replicas");
  refused(
      [](auto* r) {
        r->mutable_spec()->set_in_parts(true);
        r->mutable_spec()->set_keep_newest(1);
      },
      "in_parts");
  refused([](auto* r) { r->set_expires_in_ms(-1); }, "expires_in_ms");
  const auto bad_report = [](auto change, const char* what) {
    v1::WorkerEvent event;
    v1::SaveReport* report = event.mutable_save();
    report->set_job_id("gpt");
    report->set_phase(v1::SaveReport::BEGUN);
    report->set_ordinal(1);
    EXPECT_OK(Decode(event));
    change(report);
    EXPECT_THAT(Decode(event), StatusIs(kInvalid, HasSubstr(what)));
  };
  bad_report([](auto* r) { r->set_job_id(""); }, "job_id");
  bad_report([](auto* r) { r->set_phase(v1::SaveReport::PHASE_UNSPECIFIED); }, "phase");
  bad_report([](auto* r) { r->set_ordinal(0); }, "ordinal");
  bad_report([](auto* r) { r->set_number(-1); }, "number");
  bad_report([](auto* r) { r->set_written_bytes(-1); }, "written_bytes");
  bad_report(
      [](auto* r) {
        for (int i = 0; i < 5000; ++i) r->add_removed("/c");
      },
      "removed checkpoints is 5000");
}

TEST(CodecTest, TooManyParametersAreRefused) {
  v1::CreateJobRequest request = Request();
  for (int64_t i = 0; i < kMaxParameters; ++i) {
    request.mutable_model()->mutable_units(0)->add_parameters();
  }
  EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr("number of parameters is 100014")));
}

TEST(CodecTest, BadRegistrationsAreNamed) {
  v1::RegisterWorkerRequest request;
  request.set_request_id("r");
  request.set_worker_id("node-1.a_b");
  request.set_incarnation(3);
  request.set_num_devices(2);
  request.set_key(std::string(16, 'k'));
  EXPECT_OK(Decode(request));
  request.set_key(std::string(15, 'k'));
  EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr("size of key in bytes is 15")));
  request.set_key(std::string(16, 'k'));
  request.set_num_devices(0);
  EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr("num_devices is 0")));
  request.set_num_devices(2);
  request.set_incarnation(-1);
  EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr("incarnation is -1")));
  request.set_incarnation(3);
  request.set_max_ranks_of_job(-1);
  EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr("max_ranks_of_job is -1")));
  request.set_max_ranks_of_job(1);
  request.set_device(std::string(1000, 'g'));
  EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr("device")));
  request.set_device("GPU-0");
  ASSERT_OK_AND_ASSIGN(const RegisterWorkerEvent event, Decode(request));
  EXPECT_EQ(event.member.max_ranks_of_job, 1);
  EXPECT_EQ(event.member.device, "GPU-0");
  request.set_worker_id("a/b");
  EXPECT_THAT(Decode(request), StatusIs(kInvalid, HasSubstr("worker_id 'a/b'")));
}

TEST(CodecTest, BadEventsAreNamed) {
  v1::WorkerEvent event;
  EXPECT_THAT(Decode(event), StatusIs(kInvalid, HasSubstr("none of the known events")));
  v1::OrderAnnouncement* order = event.mutable_order();
  order->set_job_id("gpt");
  order->mutable_entry()->set_dtype(v1::DTYPE_FP32);
  EXPECT_OK(Decode(event));
  order->set_sequence(kMaxSequence);
  EXPECT_THAT(Decode(event), StatusIs(kInvalid, HasSubstr("sequence")));
  order->set_sequence(0);
  order->set_step(-1);
  EXPECT_THAT(Decode(event), StatusIs(kInvalid, HasSubstr("step")));
  order->set_step(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(Decode(event), StatusIs(kInvalid, HasSubstr("step")));
  order->set_step(1);
  order->mutable_entry()->clear_dtype();
  EXPECT_THAT(Decode(event), StatusIs(kInvalid, HasSubstr("dtype")));
  event.mutable_failure()->set_job_id("gpt");
  event.mutable_failure()->set_reason(std::string(1 << 20, 'x'));
  EXPECT_EQ(std::get<RankFailure>(*Decode(event)).reason.size(), kMaxReasonBytes);
  event.mutable_prepared()->set_job_id("gpt");
  event.mutable_prepared()->set_decided_step(-1);
  EXPECT_THAT(Decode(event), StatusIs(kInvalid, HasSubstr("decided_step")));
}

// --- journal records ---

JobStatus FullStatus() {
  JobStatus status;
  status.state = JobState::kRunning;
  status.epoch = Epoch(4);
  status.resume_step = Step(17);
  status.placements = {{WorkerId("a"), 1, Incarnation(9)}, {WorkerId("b"), 0, Incarnation(8)}};
  status.reason = "why";
  return status;
}

void ExpectEqual(const JobStatus& a, const JobStatus& b) {
  EXPECT_EQ(a.state, b.state);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.resume_step, b.resume_step);
  EXPECT_EQ(a.placements, b.placements);
  EXPECT_EQ(a.reason, b.reason);
}

template <typename Record>
Record RoundTrip(const Record& record) {
  std::vector<JournalChange> batch;
  EncodeRecord(record, &batch);
  EXPECT_EQ(batch.size(), 1);
  absl::StatusOr<StateRecord> decoded = DecodeRecord({batch[0].key, batch[0].value});
  EXPECT_OK(decoded);
  return std::get<Record>(*decoded);
}

TEST(RecordCodecTest, RecordsSurviveTheRoundTrip) {
  const JobSpecPtr spec = Decode(Request())->spec;
  const auto spec_back = RoundTrip(JobSpecRecord{JobId("gpt"), spec, Generation(3), "uid:7"});
  EXPECT_EQ(spec_back.job, JobId("gpt"));
  EXPECT_EQ(spec_back.generation, Generation(3));
  EXPECT_EQ(spec_back.owner, "uid:7");
  EXPECT_OK(CompareModels(spec->model, "a", spec_back.spec->model, "b"));
  EXPECT_EQ(spec_back.spec->layout_digest, spec->layout_digest);
  EXPECT_GT(spec->cpu_host_memory.rank_bytes, 0);
  EXPECT_EQ(spec_back.spec->cpu_host_memory.BytesOf(3), spec->cpu_host_memory.BytesOf(3));
  EXPECT_EQ(spec_back.spec->gpu_host_memory.BytesOf(3), spec->gpu_host_memory.BytesOf(3));
  ExpectEqual(RoundTrip(JobStatusRecord{JobId("gpt"), FullStatus()}).status, FullStatus());
  EXPECT_EQ(RoundTrip(JobStepRecord{JobId("gpt"), Step(5)}).committed_step, Step(5));
  Member member;
  member.incarnation = Incarnation(3);
  member.num_devices = 8;
  member.address = "host:1";
  member.lost = true;
  member.max_ranks_of_job = 2;
  member.device = "GPU-0";
  member.memory_bytes = 12345;
  member.key = "its key";
  const auto member_back = RoundTrip(MemberRecord{WorkerId("w.1"), member});
  EXPECT_EQ(member_back.worker, WorkerId("w.1"));
  EXPECT_EQ(member_back.member.num_devices, 8);
  EXPECT_EQ(member_back.member.address, "host:1");
  EXPECT_TRUE(member_back.member.lost);
  EXPECT_EQ(member_back.member.max_ranks_of_job, 2);
  EXPECT_EQ(member_back.member.device, "GPU-0");
  EXPECT_EQ(member_back.member.memory_bytes, 12345);
  EXPECT_EQ(member_back.member.key, "its key");
  const auto request = RoundTrip(
      RequestRecord{"id/with slash", {RequestKind::kDeleteJob, JobId("gpt"), FullStatus(), 12}});
  EXPECT_EQ(request.request_id, "id/with slash");
  EXPECT_EQ(request.request.kind, RequestKind::kDeleteJob);
  EXPECT_EQ(request.request.sequence, 12);
  ExpectEqual(request.request.reply, FullStatus());
  HandOver hand_over;
  hand_over.phase = HandOverPhase::kAccepted;
  hand_over.number = 4;
  hand_over.step = Step(7);
  hand_over.frozen = true;
  hand_over.deadline = absl::FromUnixMillis(12345);
  hand_over.taker = JobId("next");
  hand_over.taker_generation = Generation(9);
  hand_over.reason = "why";
  hand_over.trainer_states =
      std::make_shared<const std::vector<std::string>>(2, std::string("\0a", 2));
  const auto handed = RoundTrip(HandOverRecord{JobId("gpt"), hand_over});
  EXPECT_EQ(handed.job, JobId("gpt"));
  EXPECT_EQ(handed.hand_over.phase, HandOverPhase::kAccepted);
  EXPECT_EQ(handed.hand_over.number, 4);
  EXPECT_EQ(handed.hand_over.step, Step(7));
  EXPECT_TRUE(handed.hand_over.frozen);
  EXPECT_EQ(handed.hand_over.deadline, hand_over.deadline);
  EXPECT_EQ(handed.hand_over.taker, JobId("next"));
  EXPECT_EQ(handed.hand_over.taker_generation, Generation(9));
  EXPECT_EQ(handed.hand_over.reason, "why");
  EXPECT_EQ(*handed.hand_over.trainer_states, *hand_over.trainer_states);
  const OrderEntry entry{"reduce", UnitId(-1), DType::kBf16, 77};
  const auto order = RoundTrip(OrderRecord{JobId("gpt"), Epoch(2), {Step(3), 40}, entry});
  EXPECT_EQ(order.position, (OrderPosition{Step(3), 40}));
  EXPECT_EQ(order.entry, entry);
}

TEST(RecordCodecTest, DeadlinesStandWhereTheWallClockWasSetBeforeTheNextStart) {
  const absl::Time deadline = absl::FromUnixSeconds(1'000'000);
  HandOver hand_over;
  hand_over.deadline = deadline;
  hand_over.trainer_states = std::make_shared<const std::vector<std::string>>();
  Save save;
  save.number = 1;
  save.expires_at = deadline;
  std::vector<JournalChange> batch;
  EncodeRecord(HandOverRecord{JobId("gpt"), hand_over}, &batch, {{}, absl::Hours(-5), "boot"});
  EncodeRecord(SaveRecord{JobId("gpt"), save}, &batch, {{}, absl::Hours(-5), "boot"});
  // The next process began after the clock was set forth by an hour, perhaps in another boot.
  for (const char* boot : {"boot", "another", ""}) {
    const JournalClock next = {{}, absl::Hours(-6), boot};
    const absl::Time expected = boot == std::string("boot") ? deadline + absl::Hours(1) : deadline;
    const auto handed = DecodeRecord({batch[0].key, batch[0].value}, next);
    ASSERT_OK(handed.status());
    EXPECT_EQ(std::get<HandOverRecord>(*handed).hand_over.deadline, expected);
    const auto saved = DecodeRecord({batch[1].key, batch[1].value}, next);
    ASSERT_OK(saved.status());
    EXPECT_EQ(std::get<SaveRecord>(*saved).save.expires_at, expected);
  }
}

TEST(RecordCodecTest, SavesSurviveTheRoundTrip) {
  Save save;
  save.number = 12;
  save.request_id = "r/1";
  save.spec.path = "/c/s";
  save.spec.options.keep_newest = 3;
  save.spec.options.max_file_bytes = 1 << 20;
  save.spec.options.in_parts = save.spec.options.with_replicas = true;
  save.spec.options.overwrite = false;
  save.spec.root = "/c";
  save.state = SaveState::kEnded;
  save.requested_at = absl::FromUnixNanos(1001);
  save.expires_at = absl::FromUnixNanos(2002);
  save.tries = 2;
  save.last_failure = "died";
  save.cancelled = true;
  save.step = Step(5);
  save.ended_sequence = 7;
  save.ended_at = absl::FromUnixNanos(3003);
  save.epoch = Epoch(4);
  save.ordinal = 9;
  save.took = absl::Milliseconds(15);
  save.size_bytes = 77;
  save.outcome = absl::AbortedError("why");
  save.fate = SaveFate::kReplaced;
  const auto back = RoundTrip(SaveRecord{JobId("gpt"), save});
  EXPECT_EQ(back.job, JobId("gpt"));
  const Save& read = back.save;
  EXPECT_EQ(read.number, 12);
  EXPECT_EQ(read.request_id, save.request_id);
  EXPECT_TRUE(read.spec == save.spec);
  EXPECT_EQ(read.state, save.state);
  EXPECT_EQ(read.requested_at, save.requested_at);
  EXPECT_EQ(read.expires_at, save.expires_at);
  EXPECT_EQ(read.tries, save.tries);
  EXPECT_EQ(read.last_failure, save.last_failure);
  EXPECT_EQ(read.cancelled, save.cancelled);
  EXPECT_EQ(read.step, save.step);
  EXPECT_EQ(read.ended_sequence, save.ended_sequence);
  EXPECT_EQ(read.ended_at, save.ended_at);
  EXPECT_EQ(read.epoch, save.epoch);
  EXPECT_EQ(read.ordinal, save.ordinal);
  EXPECT_EQ(read.took, save.took);
  EXPECT_EQ(read.size_bytes, save.size_bytes);
  EXPECT_EQ(read.outcome, save.outcome);
  EXPECT_EQ(read.fate, save.fate);
  Save forever;
  forever.number = 1;
  EXPECT_EQ(RoundTrip(SaveRecord{JobId("gpt"), forever}).save.expires_at, absl::InfiniteFuture());
}

TEST(RecordCodecTest, UnreadableRowsAreNamed) {
  const auto lost = [](const std::string& key, const std::string& value) {
    EXPECT_THAT(DecodeRecord({key, value}),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr(absl::StrCat("'", key, "'"))));
  };
  lost("", "");
  lost("novel/key", "");
  lost("job/gpt", "");
  lost("job/gpt/novel", "");
  lost("job/gpt/status", "\xff");
  lost("job/gpt/spec", "\xff");
  lost("job/gpt/hand-over", "\xff");
  lost("job/gpt/spec", "");
  lost("job/gpt/status", "\x08\x63");  // State 99.
  lost("job/gpt/save/x", "");
  lost("job/gpt/save/0000000000000000000", "");
  lost("job/gpt/save/0000000000000000001", std::string("\x40\x63", 2));  // State 99.
  lost("member/a", "\xff");
  lost("request/r", "\x08\x63");
  lost("order/gpt/x/k", "");
  lost("order/gpt/1/-000001", "");
  lost("order/gpt/1/9999999", "");
  lost("order/gpt/1/0000001", "");  // No dtype.
}

}  // namespace
}  // namespace tessera::coordinator
