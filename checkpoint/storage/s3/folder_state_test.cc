#include "checkpoint/storage/s3/folder_state.h"

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::s3 {
namespace {

using testing::HasSubstr;
using testing::Pair;

TEST(FolderStateTest, StateIsReadBackAndNoTwoAreTheSameVersion) {
  FolderState state;
  state.partial = NewFolderId();
  for (const std::string& published : {std::string(), NewFolderId()}) {
    state.published = published;
    EXPECT_NE(EncodeState(state), EncodeState(state));
    ASSERT_OK_AND_ASSIGN(const FolderState read, DecodeState(EncodeState(state)));
    EXPECT_EQ(read.partial, state.partial);
    EXPECT_EQ(read.published, published);
  }
}

TEST(FolderStateTest, DamagedStatesLeadNowhere) {
  const std::string id = NewFolderId();
  const auto text = [](const std::string& published) {
    return absl::StrCat(R"({"format": "tessera.folder.1", "partial": null, "published": )",
                        published, "}");
  };
  EXPECT_OK(DecodeState(text(absl::StrCat("\"", id, "\""))));
  for (const std::string& damaged :
       {std::string(), std::string("{}"), text("1"), text("\"\""), text("\"../..\""),
        text(absl::StrCat("\"", id, "/\"")), text(absl::StrCat("\"", id.substr(1), "\"")),
        std::string(R"({"format": "tessera.folder.2", "partial": null, "published": null})"),
        std::string(R"({"format": "tessera.folder.1", "partial": null})")}) {
    EXPECT_THAT(DecodeState(damaged),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("which files")))
        << damaged;
  }
}

TEST(FolderStateTest, OnlyNamesOfTheStorageItselfAreHidden) {
  const std::string id = NewFolderId();
  EXPECT_TRUE(IsHidden(kStateName));
  EXPECT_TRUE(IsHidden("save-" + id));
  for (const std::string& name :
       {std::string("manifest.json"), std::string("save-1"), "save-" + id + "0", "xsave-" + id})
    EXPECT_FALSE(IsHidden(name)) << name;
  EXPECT_EQ(PrefixOf("a/b", id), absl::StrCat("a/b/save-", id, "/"));
  EXPECT_THAT(BaseOf("a/b.partial"), Pair("a/b", true));
  EXPECT_THAT(BaseOf("a/b"), Pair("a/b", false));
}

}  // namespace
}  // namespace tessera::s3
