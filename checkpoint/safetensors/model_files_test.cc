#include "checkpoint/safetensors/model_files.h"

#include <stdlib.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "checkpoint/open_model.h"
#include "checkpoint/safetensors/rounded_values.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ModelFilesTest : public testing::Test {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    folder_ = "/tmp/tessera-files-XXXXXX";
    ASSERT_NE(mkdtemp(folder_.data()), nullptr);
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    std::filesystem::remove_all(folder_);
  }
  static NamedTensorInfo Tensor(const std::string& name, int64_t numel,
                                StoredDType dtype = StoredDType::kF32) {
    return {name, {dtype, {numel}}};
  }
  std::set<std::string> Names() const {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      names.insert(entry.path().filename());
    return names;
  }
  std::string folder_;
};

TEST_F(ModelFilesTest, TensorsFillFilesInTheirOrderAndALargeOneHasItsOwn) {
  ASSERT_OK_AND_ASSIGN(
      const ModelFilesPlan plan,
      PlanModelFiles({Tensor("z", 4), Tensor("big", 100), Tensor("a", 4), Tensor("b", 3)}, {}, 32));
  EXPECT_EQ(plan.headers.size(), 3);
  EXPECT_EQ(plan.file_of.at("big"), "model-00001-of-00003.safetensors");
  EXPECT_EQ(plan.file_of.at("z"), "model-00002-of-00003.safetensors");
  EXPECT_EQ(plan.file_of.at("a"), plan.file_of.at("z")) << "16 bytes and 16";
  EXPECT_EQ(plan.file_of.at("b"), "model-00003-of-00003.safetensors");
  ASSERT_OK_AND_ASSIGN(const ModelIndex index, DecodeModelIndex(plan.index));
  EXPECT_EQ(index.file_of, plan.file_of);
  EXPECT_EQ(index.total_size_bytes, 4 * (4 + 100 + 4 + 3));
}

TEST_F(ModelFilesTest, WhatFitsIntoOneFileHasNoIndex) {
  ASSERT_OK_AND_ASSIGN(const ModelFilesPlan fits, PlanModelFiles({Tensor("a", 8)}, {}, 32));
  EXPECT_EQ(fits.file_of.at("a"), "model.safetensors");
  EXPECT_EQ(fits.index, "");
  ASSERT_OK_AND_ASSIGN(const ModelFilesPlan one,
                       PlanModelFiles({Tensor("a", 8), Tensor("b", 9)}, {}, 0, "x.st"));
  EXPECT_EQ(one.file_of.at("b"), "x.st");
  EXPECT_EQ(one.index, "");
}

TEST_F(ModelFilesTest, LimitBelowZeroOrANameTwiceIsRefused) {
  EXPECT_THAT(PlanModelFiles({Tensor("a", 1)}, {}, -1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("-1 bytes")));
  for (const int64_t max_file_bytes : {0, 4}) {
    EXPECT_THAT(PlanModelFiles({Tensor("a", 1), Tensor("a", 2)}, {}, max_file_bytes),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'a'")));
  }
}

// Random tensors, limits and writers.
TEST_F(ModelFilesTest, ManyWritersFilesAreReadBackAsOneModelToTheBit) {
  for (const uint32_t seed : {1, 2, 3, 4, 5, 6, 7, 8}) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937 random(seed);
    std::vector<NamedTensorInfo> tensors;
    std::map<std::string, std::vector<float>> values;
    for (int t = 0; t < 12; ++t) {
      const std::string name = absl::StrCat("t", random() % 1000, ".", t);
      tensors.push_back(Tensor(name, random() % 50));
      for (int i = 0; i < tensors.back().info.shape[0]; ++i)
        values[name].push_back(static_cast<float>(random()));
    }
    const std::string folder = absl::StrCat(folder_, "/", seed);
    ASSERT_TRUE(std::filesystem::create_directory(folder));
    ASSERT_OK_AND_ASSIGN(const ModelFilesPlan plan,
                         PlanModelFiles(tensors, {{"format", "pt"}}, 1 + random() % 400));
    ASSERT_OK(ModelFiles::Create(folder, plan));
    for (int writer = 0; writer < 3; ++writer) {
      ModelFiles files(folder, &plan);
      for (const auto& [name, all] : values) {
        const size_t begin = all.size() * writer / 3, end = all.size() * (writer + 1) / 3;
        ASSERT_OK(
            files.WriteSlice(name, begin, absl::MakeConstSpan(all).subspan(begin, end - begin)));
      }
      ASSERT_OK(files.Sync());
    }
    ASSERT_OK(ModelFiles::Publish(folder, plan));
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelSource> read, OpenModel(folder));
    EXPECT_EQ(read->tensors().size(), tensors.size());
    for (const auto& [name, expected] : values) {
      std::vector<float> got(expected.size());
      ASSERT_OK(read->ReadSlice(name, 0, absl::MakeSpan(got)));
      EXPECT_EQ(got, expected) << name;
    }
  }
}

TEST_F(ModelFilesTest, ValuesAreRoundedToWhatTheFileHas) {
  const std::vector<float> values = {1.0f,
                                     1.00390625f,
                                     1.01171875f,
                                     -0.0f,
                                     3.0e38f,
                                     1.0e-40f,
                                     std::numeric_limits<float>::infinity()};
  ASSERT_OK_AND_ASSIGN(const ModelFilesPlan plan,
                       PlanModelFiles({Tensor("w", values.size(), StoredDType::kBf16)}, {}, 0));
  ASSERT_OK(ModelFiles::Create(folder_, plan));
  ModelFiles files(folder_, &plan);
  ASSERT_OK(files.WriteSlice("w", 0, values));
  ASSERT_OK(ModelFiles::Publish(folder_, plan));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<ModelSource> read, OpenModel(folder_));
  std::vector<uint16_t> stored(values.size());
  ASSERT_OK(read->ReadStored("w", 0, stored.size(), reinterpret_cast<char*>(stored.data())));
  // Ties go to even: 1 + 1/256 down, 1 + 3/256 up.
  EXPECT_EQ(stored,
            (std::vector<uint16_t>{0x3f80, 0x3f80, 0x3f82, 0x8000, 0x7f62, 0x0001, 0x7f80}));
}

TEST_F(ModelFilesTest, FiniteValueThatWouldBecomeInfiniteIsRefusedByTensorAndValue) {
  EXPECT_OK(RoundValues(std::vector<float>{65504.0f, std::nanf("")}, DType::kFp16).status());
  EXPECT_THAT(RoundValues(std::vector<float>{65520.0f}, DType::kFp16),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("65520 is too large for fp16")));
  EXPECT_THAT(RoundValues(std::vector<double>{1e300}, DType::kFp32),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("1e+300 is too large for fp32")));
  EXPECT_THAT(RoundValues(std::vector<double>{-1e300}, DType::kBf16),
              StatusIs(absl::StatusCode::kOutOfRange, testing::_));
  EXPECT_THAT(RoundValues(std::vector<float>{1}, DType::kFp64),
              StatusIs(absl::StatusCode::kInvalidArgument, testing::_));
  ASSERT_OK_AND_ASSIGN(const ModelFilesPlan plan,
                       PlanModelFiles({Tensor("w", 1, StoredDType::kF16)}, {}, 0));
  ASSERT_OK(ModelFiles::Create(folder_, plan));
  ModelFiles files(folder_, &plan);
  EXPECT_THAT(files.WriteSlice("w", 0, std::vector<float>{7e4f}),
              StatusIs(absl::StatusCode::kOutOfRange, AllOf(HasSubstr("'w'"), HasSubstr("70000"))));
}

TEST_F(ModelFilesTest, SlicesOutsideOfATensorAndOfNoTensorAreRefused) {
  ASSERT_OK_AND_ASSIGN(const ModelFilesPlan plan,
                       PlanModelFiles({Tensor("w", 3), Tensor("f4", 4, StoredDType::kF4)}, {}, 0));
  ASSERT_OK(ModelFiles::Create(folder_, plan));
  ModelFiles files(folder_, &plan);
  EXPECT_THAT(files.WriteStored("v", 0, "abcd"),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("'v'")));
  for (const int64_t begin_elements : {int64_t{3}, int64_t{-1}, int64_t{1} << 62}) {
    EXPECT_THAT(files.WriteStored("w", begin_elements, "abcd"),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w'")));
  }
  EXPECT_THAT(files.WriteStored("f4", 1, "a"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'f4'")));
  EXPECT_OK(files.WriteStored("f4", 2, "a"));
}

TEST_F(ModelFilesTest, ErrorOfAnyWriteIsReturned) {
  ASSERT_OK_AND_ASSIGN(const ModelFilesPlan plan,
                       PlanModelFiles({Tensor("a", 4), Tensor("b", 4)}, {}, 16));
  const auto write = [&]() -> absl::Status {
    absl::Status status = ModelFiles::Create(folder_, plan);
    ModelFiles files(folder_, &plan);
    for (const char* name : {"a", "b"})
      status.Update(files.WriteSlice(name, 0, std::vector<float>(4, 1.0f)));
    status.Update(files.Sync());
    status.Update(ModelFiles::Publish(folder_, plan));
    return status;
  };
  for (const char* point :
       {"model-file.write", "model-file.sync", "model-file.publish", "file.write", "file.sync"}) {
    int hit = 1;
    for (; hit < 100; ++hit) {
      Fault fault;
      fault.at_hit = hit;
      fault.status = absl::DataLossError("input/output error");
      ArmFaultPoint(point, fault);
      const absl::Status status = write();
      DisarmAllFaultPoints();
      if (status.ok()) break;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("input/output")));
    }
    EXPECT_GT(hit, 1) << point << " is on the way";
    EXPECT_LT(hit, 100);
  }
}

}  // namespace
}  // namespace tessera
