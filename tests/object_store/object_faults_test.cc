// A save to an object store that ends at each of its requests: whatever that leaves, the path names
// the old checkpoint or the new one, complete.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/status_matchers.h"
#include "checkpoint/manifest/checkpoint_folder.h"
#include "checkpoint/manifest/verify_checkpoint.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/safetensors/file_io.h"
#include "checkpoint/safetensors/model_file.h"
#include "checkpoint/safetensors/tensor_table.h"
#include "checkpoint/storage/storage_patience.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/object_store/object_store.h"

namespace tessera {
namespace {

using testing::IsEmpty;

constexpr int64_t kHalf = 3'000;  // Elements that each of two writers has.

class ObjectFaultsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto started = ObjectStore::Start();
    if (absl::IsNotFound(started.status())) GTEST_SKIP() << started.status().message();
    ASSERT_OK(started);
    store_ = *std::move(started);
    path_ = store_->Path("run/c");
  }

  static std::vector<float> Values(int64_t step) {
    std::vector<float> values(2 * kHalf);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(step * 10'000 + i);
    return values;
  }

  absl::Status WriteFiles(int64_t step, const SafetensorsHeader& header,
                          const std::vector<float>& values,
                          const std::optional<FolderIdentity>& made) {
    const std::string file = absl::StrCat(PartialFolder(path_), "/", kModelFileName);
    RETURN_IF_ERROR(ModelFile::Create(file, header));
    for (const int64_t begin : {int64_t{0}, kHalf}) {
      ASSIGN_OR_RETURN(ModelFile part, ModelFile::Open(file, header));
      RETURN_IF_ERROR(
          part.WriteSlice("w", begin, absl::MakeConstSpan(values).subspan(begin, kHalf)));
      RETURN_IF_ERROR(part.Sync());
    }
    RETURN_IF_ERROR(WriteWholeFile(absl::StrCat(PartialFolder(path_), "/", TrainerFileName(0)),
                                   absl::StrCat("step ", step)));
    RETURN_IF_ERROR(CheckStillMade(path_, made));
    return ModelFile::Publish(file);
  }

  // As two ranks do it.
  absl::Status Save(int64_t step, Existing existing = Existing::kReplaced) {
    ASSIGN_OR_RETURN(const SafetensorsHeader header,
                     PlaceInfos({{"w", {StoredDType::kF32, {2 * kHalf}}}}, {{"format", "pt"}}));
    const std::vector<float> values = Values(step);
    std::optional<FolderIdentity> made;
    absl::Status status = BeginFolder(path_, FolderKind::kCheckpoint, &made);
    if (status.ok()) status = WriteFiles(step, header, values, made);
    Manifest manifest;
    manifest.job_id = "gpt";
    manifest.step = step;
    manifest.world_size = 1;
    manifest.optimizer = "adamw";
    const std::string own = absl::StrCat("step ", step);
    manifest.files[TrainerFileName(0)] = {static_cast<int64_t>(own.size()), Crc32(own), {}};
    const absl::string_view bytes(reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float));
    manifest.files[std::string(kModelFileName)] = {
        header.file_bytes, Crc32(EncodeHeader(header)), {{"w", Crc32(bytes)}}};
    if (status.ok()) status = PublishCheckpoint(path_, manifest, existing);
    if (!status.ok()) DiscardFolder(path_, made);
    return status;
  }

  // The step of the checkpoint that is there, whole; 0: none is.
  int64_t StepThere() {
    const absl::StatusOr<Verification> found = VerifyCheckpoint(path_);
    if (absl::IsNotFound(found.status())) return 0;
    EXPECT_OK(found);
    if (!found.ok()) return -1;
    EXPECT_THAT(found->damages, IsEmpty());
    return found->manifest.step;
  }

  // How many requests the save after this has if nothing fails.
  int64_t CountRequests(int64_t step) {
    store_->Heal();
    EXPECT_OK(Save(step));
    return store_->Ask({{"do", "counts"}})["seen"].get<int64_t>();
  }

  std::unique_ptr<ObjectStore> store_;
  std::string path_;
};

// 403 is not tried again: as a process that dies, whose request is not done. With "lost" it is done.
TEST_F(ObjectFaultsTest, SaveThatEndsAtAnyRequestLeavesTheOldOrTheNewCheckpoint) {
  int64_t step = 1;
  ASSERT_OK(Save(step));
  const int64_t requests = CountRequests(++step);
  ASSERT_GT(requests, 20);
  int num_new = 0;
  for (int64_t first = 0; first < requests; ++first) {
    SCOPED_TRACE(absl::StrCat("from request ", first, " on"));
    const int64_t before = StepThere();
    store_->SetFaults({{"kinds", {"403"}}, {"from", first}});
    const absl::Status status = Save(++step);
    store_->Heal();
    const int64_t there = StepThere();
    // One that says that it failed may have got the name, if only the removal of the older failed.
    EXPECT_TRUE(there == before || there == step) << there << " " << status;
    if (status.ok()) {
      EXPECT_EQ(there, step);
    }
    if (there == step) ++num_new;
  }
  EXPECT_GT(num_new, 0) << "the last requests only tidy up";
  EXPECT_LT(num_new, requests);
  // And the next one is not in its way.
  ASSERT_OK(Save(++step));
  EXPECT_EQ(StepThere(), step);
  for (const std::string& key : store_->Keys())
    EXPECT_FALSE(absl::StrContains(key, ".partial/")) << key;
  EXPECT_THAT(store_->Uploads(), IsEmpty());
}

TEST_F(ObjectFaultsTest, FirstSaveThatEndsAtAnyRequestLeavesNoneOrTheNewCheckpoint) {
  int64_t step = 1;
  const std::string first_path = path_;
  const int64_t requests = CountRequests(step);
  for (int64_t first = 0; first < requests; ++first) {
    SCOPED_TRACE(absl::StrCat("from request ", first, " on"));
    path_ = absl::StrCat(first_path, first);
    store_->SetFaults({{"kinds", {"403"}}, {"from", first}});
    const absl::Status status = Save(++step);
    store_->Heal();
    const int64_t there = StepThere();
    EXPECT_TRUE(there == 0 || there == step) << there << " " << status;
    if (status.ok()) {
      EXPECT_EQ(there, step);
    }
    ASSERT_OK(Save(++step));
    EXPECT_EQ(StepThere(), step);
  }
}

TEST_F(ObjectFaultsTest, AnswerThatIsLostAtAnyRequestIsNotSeen) {
  int64_t step = 1;
  ASSERT_OK(Save(step));
  const int64_t requests = CountRequests(++step);
  for (int64_t at = 0; at < requests; ++at) {
    SCOPED_TRACE(absl::StrCat("request ", at));
    store_->SetFaults({{"kinds", {"lost"}}, {"at", {at}}});
    ASSERT_OK(Save(++step));
    EXPECT_EQ(store_->NumSpoiled(), 1);
    store_->Heal();
    EXPECT_EQ(StepThere(), step);
  }
}

TEST_F(ObjectFaultsTest, PutWhoseAnswerIsLostIsNotAnothersCheckpoint) {
  // Of the folder's state, which is put on a condition that the lost put has made untrue.
  for (int at = 0; at < 2; ++at) {
    path_ = store_->Path(absl::StrCat("new", at));
    store_->SetFaults({{"kinds", {"lost"}}, {"at", {at}}, {"only", "^PUT .*tessera-folder"}});
    EXPECT_OK(Save(1, Existing::kRefused));
    EXPECT_EQ(store_->NumSpoiled(), 1);
    store_->Heal();
    EXPECT_EQ(StepThere(), 1);
    EXPECT_THAT(Save(2, Existing::kRefused),
                StatusIs(absl::StatusCode::kAlreadyExists, testing::HasSubstr(path_)));
    EXPECT_EQ(StepThere(), 1);
  }
}

TEST_F(ObjectFaultsTest, StoreThatGoesAwayFailsTheSaveAndLeavesTheOldCheckpoint) {
  ASSERT_OK(Save(1));
  for (const char* kind : {"503", "cut"}) {
    store_->SetFaults({{"kinds", {kind}}, {"from", 8}});
    {
      const StoragePatience patience(absl::Seconds(2));
      EXPECT_THAT(Save(2), StatusIs(absl::StatusCode::kInternal, testing::HasSubstr("run/c")));
    }
    store_->Heal();
    EXPECT_EQ(StepThere(), 1);
  }
}

}  // namespace
}  // namespace tessera
