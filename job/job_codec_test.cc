#include "job/job_codec.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "job/field_limits.h"

namespace tessera {
namespace {

using ::google::protobuf::util::MessageDifferencer;
using ::testing::HasSubstr;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

// Every field is set; see the test.
v1::JobConfig EveryField() {
  v1::JobConfig config;
  config.set_world_size(3);
  config.set_strategy(v1::STRATEGY_NO_SHARD);
  config.set_compute_dtype(v1::DTYPE_BF16);
  config.set_reduce_dtype(v1::DTYPE_FP16);
  config.set_parameter_alignment_bytes(32);
  config.set_shard_alignment_bytes(256);
  config.mutable_optimizer()->set_kind(v1::OPTIMIZER_KIND_ADAM);
  for (const char* name : {"", "root.bias"}) {
    v1::ParamGroup* group = config.mutable_optimizer()->add_groups();
    if (*name != '\0') group->add_parameter_names(name);
    group->set_learning_rate(0.25);
    group->set_beta1(0.5);
    group->set_beta2(0.75);
    group->set_epsilon(0.125);
    group->set_weight_decay(0.0625);
    group->set_momentum(0.375);
  }
  config.set_max_gradient_norm(1.5);
  config.set_gradient_norm_p(3.5);
  config.set_max_gathered_units(7);
  config.set_gradient_slots(5);
  config.set_collective_timeout_ms(12345);
  config.set_backward_prefetch(v1::BACKWARD_PREFETCH_POST);
  config.set_forward_prefetch(true);
  config.set_cpu_offload(true);
  config.set_optimizer_in_backward(true);
  config.set_fake_all_gather(true);
  config.set_fake_reduce_scatter(true);
  config.set_shard_check_interval_steps(100);
  config.set_max_gathered_bytes(int64_t{1} << 40);
  config.set_keep_low_precision_gradients(true);
  config.set_shard_group_size(3);
  config.set_reshard_group_size(2);
  return config;
}

v1::ModelSpec Model() {
  v1::ModelSpec model;
  for (const char* name : {"root", "blocks.0"}) {
    v1::UnitSpec* unit = model.add_units();
    unit->set_name(name);
    unit->set_compute_dtype(v1::DTYPE_FP16);
    unit->set_reduce_dtype(v1::DTYPE_FP32);
    unit->set_strategy(v1::STRATEGY_HYBRID_SHARD);
    for (const char* parameter : {".weight", ".tied"}) {
      v1::ParameterSpec* spec = unit->add_parameters();
      spec->set_name(absl::StrCat(name, parameter));
      spec->add_shape(4);
      spec->add_shape(3);
      spec->set_dtype(v1::DTYPE_FP32);
      spec->set_requires_grad(true);
    }
    unit->mutable_parameters(1)->set_shared_with(unit->parameters(0).name());
  }
  for (const char* dtype : {"BOOL", "F8_E4M3", "I64", "C64"}) {
    v1::BufferSpec* buffer = model.add_buffers();
    buffer->set_name(absl::StrCat("buffer.", dtype));
    buffer->set_dtype(dtype);
    buffer->add_shape(7);
  }
  return model;
}

// So that a field which the messages gain is not forgotten here.
void ExpectEveryFieldIsSet(const google::protobuf::Message& message) {
  std::vector<const google::protobuf::FieldDescriptor*> set;
  message.GetReflection()->ListFields(message, &set);
  EXPECT_EQ(set.size(), message.GetDescriptor()->field_count()) << message.DebugString();
}

TEST(JobCodecTest, EveryFieldSurvivesTheRoundTrip) {
  v1::JobConfig sent = EveryField();
  ExpectEveryFieldIsSet(sent);
  ExpectEveryFieldIsSet(sent.optimizer());
  ExpectEveryFieldIsSet(sent.optimizer().groups(1));
  ExpectEveryFieldIsSet(Model().units(1));
  ExpectEveryFieldIsSet(Model().units(1).parameters(1));
  ExpectEveryFieldIsSet(Model());
  ExpectEveryFieldIsSet(Model().buffers(0));
  for (const bool flag : {true, false}) {
    sent.set_forward_prefetch(flag);
    ASSERT_OK_AND_ASSIGN(const JobConfig config, DecodeJobConfig(sent));
    EXPECT_TRUE(MessageDifferencer::Equals(EncodeJobConfig(config), sent));
  }
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, DecodeModel(Model()));
  EXPECT_TRUE(MessageDifferencer::Equals(EncodeModel(model), Model()));
}

TEST(JobCodecTest, UnitWithoutDTypesHasTheJobs) {
  v1::ModelSpec model = Model();
  model.mutable_units(0)->clear_compute_dtype();
  ASSERT_OK_AND_ASSIGN(const ModelSpec decoded, DecodeModel(model));
  EXPECT_EQ(decoded.units[0].compute_dtype, std::nullopt);
  EXPECT_EQ(decoded.units[1].compute_dtype, DType::kFp16);
  EXPECT_TRUE(MessageDifferencer::Equals(EncodeModel(decoded), model));
  model.mutable_units(1)->set_reduce_dtype(static_cast<v1::DType>(77));
  EXPECT_THAT(DecodeModel(model),
              StatusIs(kInvalid, HasSubstr("unit 'blocks.0': reduce_dtype: dtype 77")));
  model = Model();
  model.mutable_units(1)->set_strategy(static_cast<v1::Strategy>(77));
  EXPECT_THAT(DecodeModel(model), StatusIs(kInvalid, HasSubstr("unit 'blocks.0': strategy 77")));
}

TEST(JobCodecTest, LayoutIsAlignedForTheComputeDType) {
  ASSERT_OK_AND_ASSIGN(const JobConfig config, DecodeJobConfig(EveryField()));
  EXPECT_EQ(config.layout.alignment_dtype, DType::kBf16);
}

TEST(JobCodecTest, MessageWithoutGroupsHasNoneAfterDecoding) {
  v1::JobConfig config = EveryField();
  config.mutable_optimizer()->clear_groups();
  ASSERT_OK_AND_ASSIGN(const JobConfig decoded, DecodeJobConfig(config));
  EXPECT_TRUE(decoded.groups.empty()) << "the struct's default group is not the sender's";
}

TEST(JobCodecTest, EveryEnumSurvivesTheRoundTrip) {
  for (const v1::DType dtype : {v1::DTYPE_FP32, v1::DTYPE_BF16, v1::DTYPE_FP16, v1::DTYPE_FP64,
                                v1::DTYPE_INT64, v1::DTYPE_INT32}) {
    EXPECT_EQ(EncodeDType(*DecodeDType(dtype)), dtype);
  }
  v1::JobConfig config = EveryField();
  for (const v1::Strategy strategy :
       {v1::STRATEGY_FULL_SHARD, v1::STRATEGY_SHARD_GRAD_OP, v1::STRATEGY_NO_SHARD,
        v1::STRATEGY_HYBRID_SHARD, v1::STRATEGY_HYBRID_SHARD_ZERO2}) {
    config.set_strategy(strategy);
    EXPECT_EQ(EncodeJobConfig(*DecodeJobConfig(config)).strategy(), strategy);
  }
  for (const v1::OptimizerKind kind :
       {v1::OPTIMIZER_KIND_SGD, v1::OPTIMIZER_KIND_ADAM, v1::OPTIMIZER_KIND_ADAMW}) {
    config.mutable_optimizer()->set_kind(kind);
    EXPECT_EQ(EncodeJobConfig(*DecodeJobConfig(config)).optimizer().kind(), kind);
  }
  for (const v1::BackwardPrefetch prefetch :
       {v1::BACKWARD_PREFETCH_NONE, v1::BACKWARD_PREFETCH_PRE, v1::BACKWARD_PREFETCH_POST}) {
    config.set_backward_prefetch(prefetch);
    EXPECT_EQ(EncodeJobConfig(*DecodeJobConfig(config)).backward_prefetch(), prefetch);
  }
}

TEST(JobCodecTest, BadConfigFieldsAreNamed) {
  const auto refused = [](auto change, const char* what) {
    v1::JobConfig config = EveryField();
    change(&config);
    EXPECT_THAT(DecodeJobConfig(config), StatusIs(kInvalid, HasSubstr(what)));
  };
  using C = v1::JobConfig;
  refused([](C* c) { c->set_world_size(0); }, "world_size");
  refused([](C* c) { c->set_world_size(kMaxWorldSize + 1); }, "world_size");
  refused([](C* c) { c->clear_strategy(); }, "strategy 0");
  refused([](C* c) { c->set_strategy(static_cast<v1::Strategy>(9)); }, "strategy 9");
  refused([](C* c) { c->clear_compute_dtype(); }, "compute_dtype: dtype 0");
  refused([](C* c) { c->set_reduce_dtype(static_cast<v1::DType>(77)); }, "reduce_dtype: dtype 77");
  refused([](C* c) { c->clear_optimizer(); }, "optimizer kind 0");
  refused([](C* c) { c->set_backward_prefetch(static_cast<v1::BackwardPrefetch>(7)); },
          "backward_prefetch 7");
  refused([](C* c) { c->set_collective_timeout_ms(-1); }, "collective_timeout_ms");
}

TEST(JobCodecTest, BadModelFieldsAreNamed) {
  const auto refused = [](auto change, const char* what) {
    v1::ModelSpec model = Model();
    change(model.mutable_units(1)->mutable_parameters(0));
    EXPECT_THAT(DecodeModel(model), StatusIs(kInvalid, HasSubstr(what)));
  };
  using P = v1::ParameterSpec;
  const std::string long_name(kMaxNameBytes + 1, 'n');
  refused([](P* p) { p->clear_dtype(); },
          "unit 'blocks.0': parameter 'blocks.0.weight': dtype 0 is unknown");
  refused([&](P* p) { p->set_name(long_name); }, "unit 'blocks.0': parameter 'nnn");
  refused([&](P* p) { p->set_shared_with(long_name); }, "shared_with");
  refused(
      [](P* p) {
        for (int i = 0; i < kMaxDimensions; ++i) p->add_shape(1);
      },
      "number of dimensions is 18");
  v1::ModelSpec model = Model();
  for (int64_t i = 0; i < kMaxParameters; ++i) model.mutable_units(0)->add_parameters();
  EXPECT_THAT(DecodeModel(model), StatusIs(kInvalid, HasSubstr("number of parameters is 100004")));
}

// As a job of an older trainer or journal.
TEST(JobCodecTest, ModelWithoutBuffersHasTheBytesItAlwaysHad) {
  v1::ModelSpec sent = Model();
  sent.clear_buffers();
  ASSERT_OK_AND_ASSIGN(const ModelSpec model, DecodeModel(sent));
  EXPECT_TRUE(model.buffers.empty());
  EXPECT_EQ(EncodeModel(model).SerializeAsString(), sent.SerializeAsString());
}

TEST(JobCodecTest, BadBufferFieldsAreNamed) {
  const auto refused = [](auto change, const char* what) {
    v1::ModelSpec model = Model();
    change(model.mutable_buffers(1));
    EXPECT_THAT(DecodeModel(model), StatusIs(kInvalid, HasSubstr(what)));
  };
  using B = v1::BufferSpec;
  refused([](B* b) { b->set_dtype("F31"); }, "buffer 'buffer.F8_E4M3': dtype 'F31' is unknown");
  refused([](B* b) { b->clear_dtype(); }, "dtype '' is unknown");
  refused([](B* b) { b->set_name(std::string(kMaxNameBytes + 1, 'n')); }, "buffer 'nnn");
  refused(
      [](B* b) {
        for (int i = 0; i < kMaxDimensions; ++i) b->add_shape(1);
      },
      "number of dimensions is 17");
  v1::ModelSpec model = Model();
  for (int64_t i = 0; i < kMaxBuffers; ++i) model.add_buffers();
  EXPECT_THAT(DecodeModel(model), StatusIs(kInvalid, HasSubstr("number of buffers is 100004")));
}

}  // namespace
}  // namespace tessera
