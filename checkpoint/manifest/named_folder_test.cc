#include "checkpoint/manifest/named_folder.h"

#include <stdlib.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/file_io.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class ModelFolderTest : public testing::Test {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    root_ = "/tmp/tessera-folder-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    path_ = root_ + "/f";
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    std::filesystem::remove_all(root_);
  }
  // What makes a folder one of the kind.
  static std::string MarkOf(FolderKind kind) {
    switch (kind) {
      case FolderKind::kCheckpoint:
        return "manifest.json";
      case FolderKind::kModel:
        return "model.safetensors.index.json";
      case FolderKind::kPart:
        return "part.json";
    }
    return "";
  }
  static std::vector<FolderKind> Others(FolderKind kind) {
    std::vector<FolderKind> others;
    for (const FolderKind other :
         {FolderKind::kCheckpoint, FolderKind::kModel, FolderKind::kPart}) {
      if (other != kind) others.push_back(other);
    }
    return others;
  }
  absl::Status Publish(FolderKind kind, const std::string& text) {
    absl::Status status = BeginFolder(path_, kind);
    const std::string partial = PartialFolder(path_);
    if (status.ok()) status = WriteWholeFile(absl::StrCat(partial, "/", MarkOf(kind)), text);
    if (status.ok()) {
      status = WriteWholeFile(partial + "/model-00001-of-00002.safetensors", text);
    }
    if (status.ok()) status = PublishFolder(path_, kind);
    return status;
  }
  std::string Text(FolderKind kind) {
    return ReadWholeFile(absl::StrCat(path_, "/", MarkOf(kind)), 100).value_or("none");
  }
  std::string root_, path_;
};

class NamedFolderTest : public ModelFolderTest, public testing::WithParamInterface<FolderKind> {};

TEST_P(NamedFolderTest, OneOfTheSameKindIsReplacedAndNothingElse) {
  ASSERT_OK(Publish(GetParam(), "first"));
  ASSERT_OK(Publish(GetParam(), "second"));
  EXPECT_EQ(Text(GetParam()), "second");
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(path_)));
  for (const FolderKind other : Others(GetParam())) {
    EXPECT_THAT(Publish(other, "third"),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not replaced")));
  }
  std::filesystem::remove_all(path_);
  ASSERT_OK(WriteWholeFile(path_, "a file"));
  EXPECT_THAT(Publish(GetParam(), "third"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not replaced")));
}

TEST_F(ModelFolderTest, FolderThatCannotBeLookedAtIsNotReplaced) {
  ASSERT_OK(Publish(FolderKind::kModel, "first"));
  // As a checkpoint's, which an error hides: stat ends with ELOOP.
  std::filesystem::create_symlink("manifest.json", path_ + "/manifest.json");
  EXPECT_FALSE(Publish(FolderKind::kModel, "second").ok());
  EXPECT_EQ(Text(FolderKind::kModel), "first");
}

TEST_P(NamedFolderTest, ErrorAnywhereLeavesWhatHadTheName) {
  ASSERT_OK(Publish(GetParam(), "first"));
  for (const char* point :
       {"checkpoint.begin", "file.write", "file.sync", "folder.sync", "checkpoint.rename"}) {
    int hit = 1;
    while (true) {
      SCOPED_TRACE(absl::StrCat(point, " ", hit));
      Fault fault;
      fault.at_hit = hit;
      fault.status = absl::ResourceExhaustedError("no space left");
      ArmFaultPoint(point, fault);
      const absl::Status status = Publish(GetParam(), "second");
      DisarmAllFaultPoints();
      if (status.ok()) break;
      EXPECT_EQ(Text(GetParam()), "first");
      ++hit;
    }
    EXPECT_GT(hit, 1) << "the point is on the way";
    ASSERT_OK(Publish(GetParam(), "first"));
  }
}

TEST_P(NamedFolderTest, NameCanBeTakenAwayAgain) {
  const auto name = [&](const std::string& text) {
    EXPECT_OK(BeginFolder(path_, GetParam()));
    EXPECT_OK(WriteWholeFile(absl::StrCat(PartialFolder(path_), "/", MarkOf(GetParam())), text));
    return NameFolder(path_, GetParam())->has_value();
  };
  EXPECT_FALSE(name("first"));
  UnnameFolder(path_, false);
  EXPECT_FALSE(std::filesystem::exists(path_));
  EXPECT_FALSE(name("first"));
  EXPECT_TRUE(name("second"));
  UnnameFolder(path_, true);
  EXPECT_EQ(Text(GetParam()), "first");
  DiscardFolder(path_);
  EXPECT_FALSE(std::filesystem::exists(PartialFolder(path_)));
}

TEST_P(NamedFolderTest, FolderThatAnotherSaveMadeIsKnownAndOnlyItsOwnIsRemoved) {
  std::optional<FolderIdentity> own, others;
  const std::string partial = PartialFolder(path_);
  EXPECT_THAT(CheckStillMade(path_, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(partial)));
  ASSERT_OK(BeginFolder(path_, GetParam(), &own));
  EXPECT_OK(CheckStillMade(path_, own));
  std::filesystem::rename(partial, root_ + "/kept");  // So that its inode is not reused.
  ASSERT_OK(BeginFolder(path_, GetParam(), &others));
  EXPECT_THAT(CheckStillMade(path_, own),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(partial)));
  DiscardFolder(path_, own);
  DiscardFolder(path_, std::nullopt);
  EXPECT_OK(CheckStillMade(path_, others));
  DiscardFolder(path_, others);
  EXPECT_FALSE(std::filesystem::exists(partial));
  EXPECT_THAT(CheckStillMade(path_, others),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(partial)));
}

TEST_P(NamedFolderTest, FolderIsTheSameUnderItsName) {
  std::optional<FolderIdentity> first, second;
  ASSERT_OK(BeginFolder(path_, GetParam(), &first));
  ASSERT_OK(WriteWholeFile(absl::StrCat(PartialFolder(path_), "/", MarkOf(GetParam())), "first"));
  ASSERT_OK_AND_ASSIGN(std::optional<FolderIdentity> replaced, NameFolder(path_, GetParam()));
  EXPECT_FALSE(replaced.has_value());
  ASSERT_OK(BeginFolder(path_, GetParam(), &second));
  ASSERT_OK(WriteWholeFile(absl::StrCat(PartialFolder(path_), "/", MarkOf(GetParam())), "second"));
  ASSERT_OK_AND_ASSIGN(replaced, NameFolder(path_, GetParam()));
  EXPECT_EQ(replaced, first);
  EXPECT_OK(CheckStillMade(path_, replaced)) << "the old one is the partial one now";
}

INSTANTIATE_TEST_SUITE_P(All, NamedFolderTest,
                         testing::Values(FolderKind::kCheckpoint, FolderKind::kModel,
                                         FolderKind::kPart));

TEST_F(ModelFolderTest, ModelBesideAnythingElseIsNotReplaced) {
  ASSERT_OK(Publish(FolderKind::kModel, "first"));
  ASSERT_OK(WriteWholeFile(path_ + "/config.json", "{}"));
  EXPECT_THAT(Publish(FolderKind::kModel, "second"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is not replaced")));
  EXPECT_EQ(Text(FolderKind::kModel), "first");
}

TEST_F(ModelFolderTest, PartialFolderWithAStrangersFileIsNotRemoved) {
  ASSERT_TRUE(std::filesystem::create_directories(PartialFolder(path_) + "/notes"));
  EXPECT_THAT(Publish(FolderKind::kModel, "first"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("'notes'")));
  EXPECT_TRUE(std::filesystem::exists(PartialFolder(path_) + "/notes"));
}

}  // namespace
}  // namespace tessera
