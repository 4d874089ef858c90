// DCP folders that PyTorch itself wrote: every tensor, every slice of it, and what a damaged folder
// comes to.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_matchers.h"
#include "checkpoint/open_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/conformance/dcp/golden_folders.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing_support::GoldenFolder;
using testing_support::GoldenTensor;
using testing_support::ReadGoldenFolder;

class DcpFoldersTest : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Golden, DcpFoldersTest,
                         testing::Values("sharded", "nested", "alone", "fsdp1", "adamw",
                                         "adamw_flattened", "sgd"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(DcpFoldersTest, TensorsAreThoseThatPyTorchSaved) {
  const GoldenFolder golden = ReadGoldenFolder(GetParam());
  ASSERT_FALSE(golden.tensors.empty());
  ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(golden.WriteOut()));
  ASSERT_EQ(model->tensors().size(), golden.tensors.size());
  for (const auto& [name, tensor] : golden.tensors) {
    SCOPED_TRACE(name);
    ASSERT_EQ(model->tensors().count(name), 1);
    EXPECT_EQ(model->tensors().at(name).shape, tensor.shape);
    if (tensor.values.empty()) continue;
    std::vector<double> values(tensor.values.size());
    ASSERT_OK(model->ReadSlice(name, 0, absl::MakeSpan(values)));
    EXPECT_EQ(values, tensor.values);
  }
}

TEST_P(DcpFoldersTest, AnySliceIsTheTensorsOwn) {
  const GoldenFolder golden = ReadGoldenFolder(GetParam());
  ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(golden.WriteOut()));
  for (const auto& [name, tensor] : golden.tensors) {
    const int64_t numel = static_cast<int64_t>(tensor.values.size());
    for (int64_t begin = 0; begin < numel; ++begin) {
      for (int64_t end = begin; end <= std::min<int64_t>(numel, begin + 9); ++end) {
        std::vector<float> values(end - begin);
        ASSERT_OK(model->ReadSlice(name, begin, absl::MakeSpan(values)));
        for (int64_t i = begin; i < end; ++i)
          ASSERT_EQ(values[i - begin], static_cast<float>(tensor.values[i])) << name << " " << i;
      }
    }
  }
}

// Elements as they are stored, in a slice that begins where it likes.
template <typename Number>
std::vector<double> ReadAsStored(const ModelSource& model, const std::string& name, int64_t begin,
                                 int64_t count) {
  std::vector<Number> numbers(count);
  EXPECT_OK(model.ReadStored(name, begin, count, reinterpret_cast<char*>(numbers.data())));
  return {numbers.begin(), numbers.end()};
}

TEST_P(DcpFoldersTest, AnySliceCanBeReadAsItIsStored) {
  const GoldenFolder golden = ReadGoldenFolder(GetParam());
  ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(golden.WriteOut()));
  int num_read = 0;
  for (const auto& [name, tensor] : golden.tensors) {
    const StoredDType dtype = model->tensors().at(name).dtype;
    if (dtype != StoredDType::kF32 && dtype != StoredDType::kF64) continue;
    const int64_t numel = static_cast<int64_t>(tensor.values.size());
    for (int64_t begin = 0; begin < numel; ++begin) {
      const int64_t count = std::min<int64_t>(numel - begin, 7);
      const std::vector<double> expected(tensor.values.begin() + begin,
                                         tensor.values.begin() + begin + count);
      EXPECT_EQ(dtype == StoredDType::kF32 ? ReadAsStored<float>(*model, name, begin, count)
                                           : ReadAsStored<double>(*model, name, begin, count),
                expected)
          << name << " " << begin;
      ++num_read;
    }
  }
  EXPECT_GT(num_read, 0);
}

TEST(DcpFolderTest, TensorsOfOtherTypesAreReadAsTheyAreStored) {
  ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(ReadGoldenFolder("sharded").WriteOut()));
  EXPECT_EQ(ReadAsStored<int64_t>(*model, "steps", 1, 3), (std::vector<double>{1, 2, 3}));
  for (const std::string name : {"small", "mask", "waves"}) {
    std::string bytes(8, 'x');
    EXPECT_OK(model->ReadStored(name, 0, 1, bytes.data()));
  }
  char byte = 0;
  EXPECT_THAT(model->ReadStored("steps", 4, 1, &byte),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("steps")));
}

TEST(DcpFolderTest, TensorsOfOtherTypesAreListedAndNotRead) {
  ASSERT_OK_AND_ASSIGN(const auto model, OpenModel(ReadGoldenFolder("sharded").WriteOut()));
  EXPECT_EQ(model->tensors().at("small").dtype, StoredDType::kF8E4M3);
  EXPECT_EQ(model->tensors().at("mask").dtype, StoredDType::kBool);
  EXPECT_EQ(model->tensors().at("waves").dtype, StoredDType::kC64);
  std::vector<float> value(1);
  for (const std::string name : {"small", "mask", "waves", "steps"}) {
    EXPECT_THAT(model->ReadSlice(name, 0, absl::MakeSpan(value)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
  }
  EXPECT_THAT(model->ReadSlice("extra.epoch", 0, absl::MakeSpan(value)),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("extra.epoch")));
}

TEST(DcpFolderTest, FileThatIsMissingOrCutIsNamed) {
  const std::string folder = ReadGoldenFolder("sharded").WriteOut();
  const std::string file = folder + "/__1_0.distcp";
  ASSERT_EQ(truncate(file.c_str(), 1000), 0);
  EXPECT_THAT(OpenModel(folder), StatusIs(absl::StatusCode::kDataLoss, HasSubstr(file)));
  ASSERT_EQ(unlink(file.c_str()), 0);
  EXPECT_THAT(OpenModel(folder), StatusIs(absl::StatusCode::kNotFound, HasSubstr(file)));
}

TEST(DcpFolderTest, AnotherStateOfAnyFileIsAnotherIdentity) {
  const std::string folder = ReadGoldenFolder("sharded").WriteOut();
  const auto identity = [&] { return (*OpenModel(folder))->identity(); };
  const uint64_t first = identity();
  EXPECT_EQ(identity(), first);
  const timespec times[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, (folder + "/__1_0.distcp").c_str(), times, 0), 0);
  EXPECT_NE(identity(), first);
}

TEST(DcpFolderTest, AnyDamageOfTheMetadataIsRefusedOrReadWithoutHarm) {
  GoldenFolder golden = ReadGoldenFolder("nested");
  const std::string metadata = golden.files[".metadata"];
  const std::string folder = golden.WriteOut();
  const int seed = 63;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  int num_refused = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = metadata;
    damaged[random() % damaged.size()] ^= static_cast<char>(1 << (random() % 8));
    std::ofstream(folder + "/.metadata", std::ios::binary) << damaged;
    const auto model = OpenModel(folder);
    if (!model.ok()) {
      ++num_refused;
      continue;
    }
    for (const auto& [name, info] : (*model)->tensors()) {
      std::vector<float> values(1);
      (*model)->ReadSlice(name, 0, absl::MakeSpan(values)).IgnoreError();
    }
  }
  EXPECT_GT(num_refused, 500);
}

}  // namespace
}  // namespace tessera
