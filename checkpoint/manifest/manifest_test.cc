#include "checkpoint/manifest/manifest.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/crc32.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

Manifest Example() {
  Manifest manifest;
  manifest.job_id = "gpt";
  manifest.step = 42;
  manifest.world_size = 4;
  manifest.optimizer = "adamw";
  manifest.groups.resize(2);
  manifest.groups[0].numbers = {{"lr", 1e-3}, {"eps", 1e-8}, {"beta2", 0.999}};
  manifest.groups[1].numbers = {{"lr", 0.1}};
  manifest.groups[1].parameters = {"head.bias", "ln.\"odd\"\n\xc3\xa9"};
  manifest.files["model.safetensors"] = {1234, 0xdeadbeef, {{"a", 0}, {"b.weight", 0xffffffff}}};
  manifest.files["trainer-00000.bin"] = {7, 3, {}};
  return manifest;
}

std::string Edited(const std::string& from, const std::string& to) {
  const std::string text = EncodeManifest(Example());
  EXPECT_THAT(text, HasSubstr(from));
  return absl::StrReplaceAll(text, {{from, to}});
}

TEST(ManifestTest, DecodingGivesWhatWasEncoded) {
  ASSERT_OK_AND_ASSIGN(const Manifest decoded, DecodeManifest(EncodeManifest(Example())));
  EXPECT_EQ(EncodeManifest(decoded), EncodeManifest(Example()));
  EXPECT_EQ(decoded.step, 42);
  EXPECT_EQ(decoded.groups[0].numbers.at("eps"), 1e-8) << "to the bit";
  EXPECT_EQ(decoded.groups[1].parameters[1], "ln.\"odd\"\n\xc3\xa9");
  EXPECT_EQ(decoded.files.at("model.safetensors").tensors.at("b.weight"), 0xffffffff);
  EXPECT_EQ(decoded.request, "");
  Manifest asked_for = Example();
  asked_for.request = "0123/7";
  ASSERT_OK_AND_ASSIGN(const Manifest request, DecodeManifest(EncodeManifest(asked_for)));
  EXPECT_EQ(request.request, "0123/7");
}

TEST(ManifestTest, AnyChangedValueIsFound) {
  EXPECT_THAT(DecodeManifest(Edited("\"step\": 42", "\"step\": 43")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  EXPECT_THAT(DecodeManifest(Edited("deadbeef", "deadbeee")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("damaged")));
  EXPECT_THAT(DecodeManifest(Edited("\"version\": 1", "\"version\": 2")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("version 2")));
  EXPECT_THAT(DecodeManifest("[]"), StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  EXPECT_THAT(DecodeManifest(""), StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
}

TEST(ManifestTest, AnyFlippedBitOrTruncationIsRefusedOrChangesNothing) {
  const std::string text = EncodeManifest(Example());
  for (size_t at = 0; at < text.size(); ++at) {
    EXPECT_FALSE(DecodeManifest(text.substr(0, at)).ok() && at + 1 < text.size()) << at;
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      const absl::StatusOr<Manifest> decoded = DecodeManifest(flipped);
      if (decoded.ok()) {
        EXPECT_EQ(EncodeManifest(*decoded), text) << "byte " << at << " bit " << bit;
      }
    }
  }
}

TEST(ManifestTest, FilesOutsideOfTheFolderAreRefused) {
  for (const char* name : {"../model.safetensors", "/etc/passwd", "..", "", "manifest.json"}) {
    Manifest manifest = Example();
    manifest.files[name] = {1, 2, {}};
    EXPECT_THAT(DecodeManifest(EncodeManifest(manifest)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not a file of the folder")))
        << name;
  }
}

TEST(ManifestTest, HostileNestingAndDoubleKeysAreRefused) {
  std::string text = EncodeManifest(Example());
  const std::string deep(200'000, '[');
  EXPECT_THAT(DecodeManifest("{\"format\": " + deep),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  text.insert(1, "\"step\": 7,");
  EXPECT_THAT(DecodeManifest(text),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("step")));
}

TEST(ManifestTest, PartAndWholeCheckpointAreNotTakenForEachOther) {
  Manifest part = Example();
  part.part = ManifestPart{3, "a save"};
  ASSERT_OK_AND_ASSIGN(const Manifest decoded, DecodePartManifest(EncodeManifest(part)));
  EXPECT_EQ(decoded.part->rank, 3);
  EXPECT_EQ(decoded.part->save_id, "a save");
  EXPECT_EQ(EncodeManifest(decoded), EncodeManifest(part));
  EXPECT_THAT(DecodeManifest(EncodeManifest(part)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("format")));
  EXPECT_THAT(DecodePartManifest(EncodeManifest(Example())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("format")));
  part.part->rank = 4;
  EXPECT_THAT(DecodePartManifest(EncodeManifest(part)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'rank'")));
}

TEST(ManifestTest, ModelIsOneFileOrNumberedOnesButNotBoth) {
  for (const char* name :
       {"model.safetensors", "model-00001-of-00002.safetensors", "model-1-of-100000.safetensors"})
    EXPECT_TRUE(IsModelFileName(name)) << name;
  for (const char* name : {"model-.safetensors", "model-1-of-.safetensors", "model-1.safetensors",
                           "model-a-of-b.safetensors", "xmodel.safetensors", "model-1-of-2-of-3",
                           "model-1-of-2-of-3.safetensors", "optimizer.safetensors", ""})
    EXPECT_FALSE(IsModelFileName(name)) << name;
  Manifest manifest = Example();
  EXPECT_EQ(*ModelFilesOf(manifest), std::vector<std::string>{"model.safetensors"});
  manifest.files["model-00001-of-00002.safetensors"] = {};
  EXPECT_THAT(ModelFilesOf(manifest),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two models")));
  manifest.files.clear();
  EXPECT_THAT(ModelFilesOf(manifest),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("model.safetensors")));
}

TEST(Crc32Test, SumsOfPartsCombineToThatOfTheWhole) {
  EXPECT_EQ(Crc32("123456789"), 0xcbf43926) << "the published check value";
  std::mt19937 random(5);
  std::string bytes(5000, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  for (int i = 0; i < 200; ++i) {
    const size_t cut = random() % (bytes.size() + 1);
    const absl::string_view all = bytes, first = all.substr(0, cut), second = all.substr(cut);
    EXPECT_EQ(CombineCrc32(Crc32(first), Crc32(second), second.size()), Crc32(bytes)) << cut;
    EXPECT_EQ(Crc32(second.data(), second.size(), Crc32(first)), Crc32(bytes)) << cut;
  }
}

TEST(Crc32Test, TextIsEightLowerCaseDigits) {
  EXPECT_EQ(FormatCrc32(0xbeef), "0000beef");
  ASSERT_OK_AND_ASSIGN(const uint32_t parsed, ParseCrc32("0000beef"));
  EXPECT_EQ(parsed, 0xbeef);
  for (const char* text : {"beef", "0000BEEF", "0x00beef", "0000beef0", " 000beef", "0000bee\xff"})
    EXPECT_FALSE(ParseCrc32(text).ok()) << text;
}

}  // namespace
}  // namespace tessera
