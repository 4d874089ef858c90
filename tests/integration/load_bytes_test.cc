// How many bytes a load reads from the disk, counted where the executors' processes call read() and
// pread(). Of the tensors it is each byte once, on all ranks together, whatever the world sizes; on
// top of that each rank reads the metadata: the manifest, the headers, the counts.
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/safetensors/model_reader.h"
#include "gtest/gtest.h"
#include "tessera/checkpoint.h"
#include "tessera/stored_model.h"
#include "tests/fault/watched_training.h"
#include "tests/testing/toy_training.h"

namespace tessera {
namespace {

using testing_support::TrainerTeam;

// A file of tensors: the bytes before the data, and of the tensors those of many and of one number.
struct Sizes {
  int64_t header_bytes = 0, data_bytes = 0, count_bytes = 0;
};

Sizes SizesOf(const std::string& path) {
  const auto file = ModelReader::Open(path);
  EXPECT_OK(file);
  Sizes sizes;
  sizes.header_bytes = file->header().data_offset_bytes;
  for (const auto& [name, tensor] : file->header().tensors) {
    (tensor.shape.empty() ? sizes.count_bytes : sizes.data_bytes) +=
        tensor.end_bytes - tensor.begin_bytes;
  }
  return sizes;
}

class LoadBytesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto training = WatchedTraining::Start();
    ASSERT_OK(training);
    training_ = *std::move(training);
    ASSERT_OK(training_->TrainStep());
  }
  int64_t ReadBytes(int rank) const { return training_->log().ReadBytes(rank); }
  // By rank, of a new job of that many.
  template <typename Load>
  std::vector<int64_t> BytesOfLoad(int world_size, const Load& load) {
    auto team = training_->OpenAnother(absl::StrCat("of", world_size), world_size);
    EXPECT_OK(team);
    std::vector<int64_t> bytes;
    for (int rank = 0; rank < world_size; ++rank) bytes.push_back(-ReadBytes(rank));
    EXPECT_OK(team->RunAll(load));
    for (int rank = 0; rank < world_size; ++rank) bytes[rank] += ReadBytes(rank);
    return bytes;
  }
  static int64_t Sum(const std::vector<int64_t>& bytes) {
    int64_t sum = 0;
    for (const int64_t of_rank : bytes) sum += of_rank;
    return sum;
  }

  std::unique_ptr<WatchedTraining> training_;
};

TEST_F(LoadBytesTest, CheckpointGoesIntoAnyWorldWithEachByteReadOnce) {
  const std::string path = training_->Path("c");
  for (const absl::Status& status : training_->SaveCheckpoint("c")) ASSERT_OK(status);
  const Sizes model = SizesOf(path + "/model.safetensors");
  const Sizes optimizer = SizesOf(path + "/optimizer.safetensors");
  ASSERT_GT(model.data_bytes, 12000);
  constexpr int64_t kBufferBytes = 8;
  const int64_t needed_bytes = model.data_bytes - kBufferBytes + optimizer.data_bytes;
  // The length of a header is read ahead of it; an update count is read to be checked, and again.
  const int64_t each_rank_bytes = std::filesystem::file_size(path + "/manifest.json") +
                                  (8 + model.header_bytes) + (8 + optimizer.header_bytes) +
                                  2 * optimizer.count_bytes;
  for (const int world_size : {1, 2, 3, 5}) {
    SCOPED_TRACE(world_size);
    LoadCheckpointOptions options;
    options.strict = false;  // It has a buffer, the job none.
    const std::vector<int64_t> bytes = BytesOfLoad(world_size, [&](Session* session) {
      // In a job without values all must be given.
      RETURN_IF_ERROR(testing_support::InitializeToy(session));
      return LoadCheckpoint(session, path, options).status();
    });
    int64_t trainer_bytes = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      const int saver = rank < WatchedTraining::kWorldSize ? rank : 0;
      trainer_bytes +=
          std::filesystem::file_size(absl::StrCat(path, "/trainer-0000", saver, ".bin"));
    }
    EXPECT_EQ(Sum(bytes) - world_size * each_rank_bytes - trainer_bytes, needed_bytes);
  }
}

TEST_F(LoadBytesTest, ModelFileGoesIntoAnyWorldWithEachByteReadOnce) {
  const std::string path = training_->Path("m");
  for (const absl::Status& status : training_->SaveModel("m")) ASSERT_OK(status);
  const Sizes model = SizesOf(path);
  for (const int world_size : {1, 2, 3, 5}) {
    SCOPED_TRACE(world_size);
    const std::vector<int64_t> bytes = BytesOfLoad(
        world_size, [&](Session* session) { return LoadModel(session, path).status(); });
    // The header again at the end: whether the file is still the same one.
    EXPECT_EQ(Sum(bytes) - world_size * 2 * model.header_bytes, model.data_bytes);
  }
}

}  // namespace
}  // namespace tessera
