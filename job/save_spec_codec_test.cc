#include "job/save_spec_codec.h"

#include <functional>
#include <string>

#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

SaveSpec Checkpoint(const std::function<void(SaveOptions*)>& change) {
  SaveSpec spec;
  spec.path = "/c";
  change(&spec.options);
  return spec;
}

TEST(SaveSpecCodecTest, EveryOptionOfACheckpointSurvivesTheRoundTrip) {
  for (const SaveSpec& spec :
       {Checkpoint([](SaveOptions*) {}),
        Checkpoint([](SaveOptions* options) { options->in_background = true; }),
        Checkpoint([](SaveOptions* options) { options->keep_newest = 3; }),
        Checkpoint([](SaveOptions* options) { options->overwrite = false; }),
        Checkpoint([](SaveOptions* options) { options->max_file_bytes = 7; }),
        Checkpoint([](SaveOptions* options) { options->in_parts = true; }),
        Checkpoint(
            [](SaveOptions* options) { options->in_parts = options->with_replicas = true; })}) {
    ASSERT_OK_AND_ASSIGN(const SaveSpec back, DecodeSaveSpec(EncodeSaveSpec(spec)));
    EXPECT_TRUE(back == spec) << EncodeSaveSpec(spec).DebugString();
  }
}

TEST(SaveSpecCodecTest, EveryFieldOfTheMessageIsDecoded) {
  // Each field, set alone, decodes to a spec that encodes to the same.
  const auto* descriptor = v1::SaveSpec::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    v1::SaveSpec message;
    if (field->name() == "with_replicas") message.set_in_parts(true);
    if (field->name() == "save_dtype") message.set_is_model(true);
    const auto* reflection = message.GetReflection();
    switch (field->cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_BOOL:
        reflection->SetBool(&message, field, true);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_INT32:
        reflection->SetInt32(&message, field, 3);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_INT64:
        reflection->SetInt64(&message, field, 3);
        break;
      case google::protobuf::FieldDescriptor::CPPTYPE_ENUM:
        reflection->SetEnumValue(&message, field, 2);
        break;
      default:
        reflection->SetString(&message, field, "/c");
    }
    ASSERT_OK_AND_ASSIGN(const SaveSpec spec, DecodeSaveSpec(message));
    EXPECT_EQ(EncodeSaveSpec(spec).SerializeAsString(), message.SerializeAsString())
        << field->name();
  }
}

TEST(SaveSpecCodecTest, OptionsThatCannotBeCombinedAreNamed) {
  const auto refused = [](SaveContent content, const std::function<void(SaveOptions*)>& change,
                          const std::string& why) {
    SaveSpec spec = Checkpoint(change);
    spec.content = content;
    EXPECT_THAT(DecodeSaveSpec(EncodeSaveSpec(spec)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(why)));
  };
  constexpr SaveContent kCheckpoint = SaveContent::kCheckpoint, kModel = SaveContent::kModel;
  refused(
      kCheckpoint, [](auto* options) { options->keep_newest = -1; }, "keep_newest -1");
  refused(
      kModel, [](auto* options) { options->max_file_bytes = -1; }, "max_file_bytes -1");
  refused(
      kCheckpoint, [](auto* options) { options->dtype = DType::kBf16; }, "full precision");
  refused(
      kModel, [](auto* options) { options->dtype = DType::kFp64; }, "fp32, bf16 or fp16");
  refused(
      kCheckpoint, [](auto* options) { options->with_replicas = true; }, "with_replicas");
  refused(
      kModel, [](auto* options) { options->in_parts = true; }, "a model alone");
  refused(
      kCheckpoint, [](auto* options) { options->in_parts = true, options->max_file_bytes = 1; },
      "a part is one file");
  refused(
      kCheckpoint, [](auto* options) { options->in_parts = true, options->keep_newest = 1; },
      "none is removed");
}

}  // namespace
}  // namespace tessera
