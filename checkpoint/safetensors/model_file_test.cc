#include "checkpoint/safetensors/model_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <limits>
#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/model_reader.h"
#include "checkpoint/safetensors/safetensors_header.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::string TempFolder() {
  std::string path = testing::TempDir() + "/tessera-storage-XXXXXX";
  return mkdtemp(path.data());
}

std::vector<TensorSpec> SomeTensors() {
  return {{"b", {3, 5}, DType::kFp32}, {"a", {}, DType::kFp32}, {"empty", {0, 7}, DType::kFp32}};
}

std::string FileOf(const std::string& json, int64_t data_bytes) {
  std::string bytes(8, '\0');
  bytes[0] = static_cast<char>(json.size());
  return bytes + json + std::string(data_bytes, 'x');
}

TEST(SafetensorsHeaderTest, EncodedHeaderDecodesToTheSamePlaces) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       PlaceTensors(SomeTensors(), {{"format", "pt"}}));
  const std::string bytes = EncodeHeader(header);
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), header.data_offset_bytes);
  EXPECT_EQ(header.data_offset_bytes % 8, 0);
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader decoded, DecodeHeader(bytes, header.file_bytes));
  ASSERT_EQ(decoded.tensors.size(), 3);
  EXPECT_EQ(decoded.tensors.at("a").begin_bytes, 0);
  EXPECT_EQ(decoded.tensors.at("a").end_bytes, 4);
  EXPECT_EQ(decoded.tensors.at("b").end_bytes, 64);
  EXPECT_EQ(decoded.tensors.at("empty").shape, (std::vector<int64_t>{0, 7}));
  EXPECT_EQ(decoded.metadata.at("format"), "pt");
}

TEST(SafetensorsHeaderTest, RefusesWhatTheFormatForbidsAndNamesTheTensor) {
  const struct {
    std::string json;
    int64_t data_bytes;
    std::string message;
  } kCases[] = {
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "'a': a hole"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "'a': data_offsets do not hold 8"},
      {R"({"a":{"dtype":"Q8","shape":[1],"data_offsets":[0,4]}})", 4, "'a': unknown dtype 'Q8'"},
      {R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})", 4, "'a': bad shape"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "its header says"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]}})", 4,
       "overflows"},
      {R"({"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
       4, "'a': the key is there twice"},
      {R"({"__metadata__":{"k":1}})", 0, "non-string"},
      {R"([1])", 0, "not a JSON object"},
      {R"({"a":)", 0, "no JSON object"},
  };
  for (const auto& c : kCases) {
    const std::string file = FileOf(c.json, c.data_bytes);
    EXPECT_THAT(DecodeHeader(file, file.size()),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)))
        << c.json;
  }
}

TEST(SafetensorsHeaderTest, AnyTruncationOrFlippedByteIsRefusedOrStillCoversTheFile) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(SomeTensors(), {}));
  const std::string bytes = EncodeHeader(header);
  const int seed = 7;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (size_t cut = 0; cut < bytes.size(); ++cut) {
    EXPECT_FALSE(DecodeHeader(bytes.substr(0, cut), header.file_bytes).ok()) << cut;
  }
  for (int i = 0; i < 2000; ++i) {
    std::string flipped = bytes;
    flipped[random() % flipped.size()] ^= static_cast<char>(1 << (random() % 8));
    const auto decoded = DecodeHeader(flipped, header.file_bytes);
    if (!decoded.ok()) continue;
    int64_t covered = 0;
    for (const auto& [name, tensor] : decoded->tensors)
      covered += tensor.end_bytes - tensor.begin_bytes;
    EXPECT_EQ(covered, header.file_bytes - header.data_offset_bytes);
  }
}

TEST(ModelFileTest, SlicesOfManyWritersReadBackAsOneModel) {
  const std::string path = TempFolder() + "/model.safetensors";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       PlaceTensors({{"w", {1001}, DType::kFp32}}, {}));
  ASSERT_OK(ModelFile::Create(path, header));
  std::vector<float> values(1001);
  for (int i = 0; i < 1001; ++i) values[i] = static_cast<float>(i);
  std::vector<std::thread> writers;
  for (int rank = 0; rank < 4; ++rank) {
    writers.emplace_back([&, rank] {
      auto file = ModelFile::Open(path, header);
      const int begin = rank * 251, end = std::min(begin + 251, 1001);
      EXPECT_OK(file->WriteSlice("w", begin, absl::MakeSpan(values).subspan(begin, end - begin)));
      EXPECT_OK(file->Sync());
    });
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_NE(access(path.c_str(), F_OK), 0) << "visible before it was published";
  ASSERT_OK(ModelFile::Publish(path));
  ASSERT_OK_AND_ASSIGN(const std::vector<LoadedTensor> read, ReadModelFile(path));
  ASSERT_EQ(read.size(), 1);
  EXPECT_EQ(read[0].values, values);
}

TEST(ModelFileTest, SliceOutsideItsTensorIsRefused) {
  const std::string path = TempFolder() + "/model.safetensors";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       PlaceTensors({{"w", {4}, DType::kFp32}}, {}));
  ASSERT_OK(ModelFile::Create(path, header));
  ASSERT_OK_AND_ASSIGN(ModelFile file, ModelFile::Open(path, header));
  const std::vector<float> values(3);
  EXPECT_THAT(file.WriteSlice("w", 0, std::vector<double>(3)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("fp64")));
  EXPECT_THAT(file.WriteSlice("w", 2, values),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w'")));
  EXPECT_THAT(file.WriteSlice("v", 0, values),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'v'")));
  EXPECT_OK(file.WriteStored("w", 3, "1234"));
  for (const int64_t begin_elements :
       {int64_t{-1}, int64_t{4}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(file.WriteStored("w", begin_elements, "1234"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w'")));
  }
}

TEST(ModelReaderTest, SlicesAreWidenedAndRounded) {
  const std::string path = TempFolder() + "/model.safetensors";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header,
                       PlaceTensors({{"w", {70000}, DType::kFp64}, {"n", {2}, DType::kInt64}}, {}));
  ASSERT_OK(ModelFile::Create(path, header));
  ASSERT_OK_AND_ASSIGN(ModelFile file, ModelFile::Open(path, header));
  std::vector<double> values(70000);
  for (size_t i = 0; i < values.size(); ++i) values[i] = 1.0 / static_cast<double>(i + 1);
  ASSERT_OK(file.WriteSlice("w", 0, values));
  ASSERT_OK(ModelFile::Publish(path));
  ASSERT_OK_AND_ASSIGN(const ModelReader reader, ModelReader::Open(path));
  std::vector<float> rounded(69000);
  ASSERT_OK(reader.ReadSlice("w", 1000, absl::MakeSpan(rounded)));
  for (size_t i = 0; i < rounded.size(); ++i)
    ASSERT_EQ(rounded[i], static_cast<float>(values[i + 1000])) << i;
  std::vector<double> exact(3);
  ASSERT_OK(reader.ReadSlice("w", 69997, absl::MakeSpan(exact)));
  EXPECT_EQ(exact, std::vector<double>(values.end() - 3, values.end()));
  EXPECT_THAT(reader.ReadSlice("w", 69998, absl::MakeSpan(exact)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w'")));
  EXPECT_THAT(reader.ReadSlice("w", -1, absl::MakeSpan(exact)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w'")));
  EXPECT_THAT(reader.ReadSlice("n", 0, absl::MakeSpan(exact)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("I64")));
  EXPECT_THAT(reader.ReadSlice("v", 0, absl::MakeSpan(exact)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'v'")));
}

TEST(ModelReaderTest, AnotherFileAndAnotherStateOfOneHaveAnotherIdentity) {
  const std::string path = TempFolder() + "/model.safetensors";
  const auto identity = [&] { return ModelReader::Open(path)->identity(); };
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(SomeTensors(), {}));
  ASSERT_OK(ModelFile::Create(path, header));
  ASSERT_OK(ModelFile::Publish(path));
  const uint64_t first = identity();
  EXPECT_EQ(identity(), first);
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
  EXPECT_NE(identity(), first);
}

TEST(ModelFileTest, MissingFolderAndRelativePathAreNamed) {
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(SomeTensors(), {}));
  EXPECT_THAT(ModelFile::Create("/no/such/folder/m", header),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/no/such/folder/m")));
  EXPECT_THAT(ModelFile::Create("m", header),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'m'")));
}

TEST(ModelFileTest, FailedPublishLeavesThePreviousFile) {
  const std::string path = TempFolder() + "/model.safetensors";
  std::ofstream(path) << "previous";
  ASSERT_OK_AND_ASSIGN(const SafetensorsHeader header, PlaceTensors(SomeTensors(), {}));
  ASSERT_OK(ModelFile::Create(path, header));
  ArmFaultPoint("model-file.publish", {FaultAction::kFail, 1, absl::UnavailableError("injected")});
  EXPECT_FALSE(ModelFile::Publish(path).ok());
  DisarmAllFaultPoints();
  std::string content;
  std::ifstream(path) >> content;
  EXPECT_EQ(content, "previous");
}

}  // namespace
}  // namespace tessera
