// What every storage promises, of the file system.
#include "checkpoint/storage/storage.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fault_point.h"
#include "base/status_matchers.h"
#include "checkpoint/storage/storage_of.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class StorageTest : public testing::Test {
 protected:
  void SetUp() override {
    DisarmAllFaultPoints();
    root_ = "/tmp/tessera-storage-XXXXXX";
    ASSERT_NE(mkdtemp(root_.data()), nullptr);
    ASSERT_OK_AND_ASSIGN(storage_, StorageOf(root_));
  }
  void TearDown() override {
    DisarmAllFaultPoints();
    std::filesystem::remove_all(root_);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(root_, "/", name); }
  std::string BytesOf(const std::string& name) {
    const auto file = storage_->OpenFile(Path(name));
    if (!file.ok()) return file.status().ToString();
    std::string bytes((*file)->size_bytes(), '\0');
    EXPECT_OK((*file)->Read(0, (*file)->size_bytes(), bytes.data()));
    return bytes;
  }
  std::vector<std::string> Names(const std::string& folder = "") {
    const auto names = storage_->List(Path(folder));
    EXPECT_OK(names);
    return names.value_or(std::vector<std::string>());
  }
  // A folder with one file.
  void MakeFolder(const std::string& name, const std::string& text) {
    ASSERT_OK(storage_->MakeFolder(Path(name)));
    ASSERT_OK(storage_->WriteWhole(Path(name + "/text"), text));
  }
  std::string root_;
  Storage* storage_ = nullptr;
};

TEST_F(StorageTest, FileOfAKnownSizeIsWrittenInRangesByManyAndPublishedInPlaceOfAnOlderOne) {
  for (const std::string& text : {std::string("first"), std::string("other")}) {
    ASSERT_OK(storage_->CreateFile(Path("f.partial"), 12, "begin:"));
    EXPECT_EQ(BytesOf("f.partial"), std::string("begin:") + std::string(6, '\0'));
    ASSERT_OK_AND_ASSIGN(const auto one, storage_->OpenToWrite(Path("f.partial"), nullptr));
    ASSERT_OK_AND_ASSIGN(const auto two, storage_->OpenToWrite(Path("f.partial"), nullptr));
    ASSERT_OK(two->Write(text.substr(2), 9));
    ASSERT_OK(one->Write(text.substr(0, 2), 7));
    ASSERT_OK(one->Sync());
    ASSERT_OK(two->Sync());
    ASSERT_OK(storage_->PublishFile(Path("f.partial"), Path("f")));
    EXPECT_EQ(BytesOf("f"), absl::StrCat("begin:", std::string(1, '\0'), text));
    EXPECT_THAT(Names(), UnorderedElementsAre("f"));
  }
}

TEST_F(StorageTest, FolderIsPublishedWhereNothingIsAndInPlaceOfAnotherAndCanBeUndone) {
  MakeFolder("c.partial", "old");
  ASSERT_OK(storage_->PublishFolder(Path("c.partial"), Path("c"), /*exchange=*/false));
  EXPECT_EQ(BytesOf("c/text"), "old");
  MakeFolder("c.partial", "new");
  EXPECT_THAT(storage_->PublishFolder(Path("c.partial"), Path("c"), /*exchange=*/false),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("c"))));
  EXPECT_EQ(BytesOf("c.partial/text"), "new");
  EXPECT_EQ(BytesOf("c/text"), "old");
  ASSERT_OK(storage_->PublishFolder(Path("c.partial"), Path("c"), /*exchange=*/true));
  EXPECT_EQ(BytesOf("c/text"), "new");
  EXPECT_EQ(BytesOf("c.partial/text"), "old");
  ASSERT_OK(storage_->UnpublishFolder(Path("c"), Path("c.partial"), /*exchange=*/true));
  EXPECT_EQ(BytesOf("c/text"), "old");
  EXPECT_EQ(BytesOf("c.partial/text"), "new");
}

TEST_F(StorageTest, FolderWhosePublishingFailsHasItsOldName) {
  MakeFolder("c.partial", "old");
  ASSERT_OK(storage_->PublishFolder(Path("c.partial"), Path("c"), /*exchange=*/false));
  MakeFolder("c.partial", "new");
  for (const char* point : {"folder.sync", "checkpoint.rename"}) {
    for (const int hit : {1, 2}) {
      Fault fault;
      fault.at_hit = hit;
      ArmFaultPoint(point, fault);
      const absl::Status status = storage_->PublishFolder(Path("c.partial"), Path("c"), true);
      DisarmAllFaultPoints();
      if (status.ok()) {  // There is but one rename.
        ASSERT_OK(storage_->UnpublishFolder(Path("c"), Path("c.partial"), true));
      }
      EXPECT_EQ(status.ok(), point == std::string("checkpoint.rename") && hit == 2);
      EXPECT_EQ(BytesOf("c/text"), "old");
      EXPECT_EQ(BytesOf("c.partial/text"), "new");
    }
  }
}

// Runs `body` in a process whose system calls of these numbers fail with these errors. Its result,
// or -1 without such a process.
int RunWhereCallsFail(const std::vector<std::pair<int, int>>& calls,
                      const std::function<absl::Status()>& body) {
  const pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    std::vector<sock_filter> filter = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
    for (const auto& [number, error] : calls) {
      filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 1));
      filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error)));
    }
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    const sock_fprog program = {static_cast<unsigned short>(filter.size()), filter.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
      _exit(255);
    }
    _exit(static_cast<int>(body().code()));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status) == 255 ? -1 : WEXITSTATUS(status);
}

// As on a file system that knows no flags of renames.
TEST_F(StorageTest, FileWhosePublishingFailsHasItsOldNameAlsoWhereFilesCannotBeExchanged) {
  const std::vector<std::pair<int, int>> no_flags = {{SYS_renameat2, EINVAL}},
                                         no_sync = {{SYS_fsync, EIO}},
                                         neither = {no_flags[0], no_sync[0]};
  std::vector<std::pair<int, int>> no_links = {no_flags[0], {SYS_linkat, EPERM}};
#ifdef SYS_link
  no_links.emplace_back(SYS_link, EPERM);
#endif
  const auto publish = [this] { return storage_->PublishFile(Path("f.partial"), Path("f")); };
  const auto run = [&](const std::vector<std::pair<int, int>>& calls, absl::StatusCode expected) {
    ASSERT_OK(storage_->WriteWhole(Path("f.partial"), "new"));
    const int code = RunWhereCallsFail(calls, publish);
    if (code < 0) GTEST_SKIP() << "no filter of system calls";
    EXPECT_EQ(static_cast<absl::StatusCode>(code), expected);
  };
  const auto expect_failed = [&](absl::StatusCode code,
                                 const std::vector<std::pair<int, int>>& calls) {
    ASSERT_NO_FATAL_FAILURE(run(calls, code));
    EXPECT_EQ(BytesOf("f"), "old");
    EXPECT_THAT(Names(),
                testing::AnyOf(UnorderedElementsAre("f", "f.partial"), UnorderedElementsAre("f")));
  };
  // Where nothing has the name.
  for (const auto& calls : {no_sync, neither}) {
    ASSERT_NO_FATAL_FAILURE(run(calls, absl::StatusCode::kInternal));
    if (IsSkipped()) return;
    EXPECT_THAT(Names(), UnorderedElementsAre("f.partial"));
  }
  ASSERT_OK(storage_->WriteWhole(Path("f"), "old"));
  expect_failed(absl::StatusCode::kInternal, no_sync);
  expect_failed(absl::StatusCode::kInternal, neither);
  expect_failed(absl::StatusCode::kFailedPrecondition, no_links);
  // A process died while two files were exchanged.
  ASSERT_OK(storage_->WriteWhole(Path("f.partial.older"), "old"));
  ASSERT_NO_FATAL_FAILURE(run(no_flags, absl::StatusCode::kOk));
  EXPECT_EQ(BytesOf("f"), "new");
  EXPECT_THAT(Names(), UnorderedElementsAre("f"));
}

TEST_F(StorageTest, RetiredFolderHasNoNameAndIsRemovedFileByFile) {
  MakeFolder("c", "text");
  ASSERT_OK(storage_->RetireFolder(Path("c"), Path("c.partial")));
  EXPECT_THAT(Names(), UnorderedElementsAre("c.partial"));
  EXPECT_FALSE(storage_->RemoveEmptyFolder(Path("c.partial")).ok());
  ASSERT_OK(storage_->RemoveFile(Path("c.partial/text")));
  ASSERT_OK(storage_->RemoveEmptyFolder(Path("c.partial")));
  EXPECT_THAT(Names(), IsEmpty());
}

TEST_F(StorageTest, LooksAtWhatIsThereAndThroughLinks) {
  MakeFolder("folder", "text");
  std::filesystem::create_symlink(Path("folder"), Path("link"));
  std::filesystem::create_symlink(Path("none"), Path("dangling"));
  const auto kind = [&](const std::string& name, Links links) -> std::optional<EntryInfo::Kind> {
    const auto info = storage_->Look(Path(name), links);
    EXPECT_OK(info);
    return info.ok() && info->has_value() ? std::make_optional((*info)->kind) : std::nullopt;
  };
  EXPECT_EQ(kind("folder", Links::kSeen), EntryInfo::Kind::kFolder);
  EXPECT_EQ(kind("folder/text", Links::kSeen), EntryInfo::Kind::kFile);
  EXPECT_EQ(kind("link", Links::kSeen), EntryInfo::Kind::kLink);
  EXPECT_EQ(kind("link", Links::kFollowed), EntryInfo::Kind::kFolder);
  EXPECT_EQ(kind("dangling", Links::kSeen), EntryInfo::Kind::kLink);
  for (const char* name : {"dangling", "none", "folder/text/below"})
    EXPECT_EQ(kind(name, Links::kFollowed), std::nullopt) << name;
  EXPECT_EQ(storage_->Look(Path("link"))->value().identity,
            storage_->Look(Path("folder"))->value().identity);
  EXPECT_NE(storage_->Look(Path("folder"))->value().identity,
            storage_->Look(root_)->value().identity);
}

TEST_F(StorageTest, ErrorsNameThePathAndTheirKind) {
  const auto error = [&](absl::StatusCode code, const std::string& name) {
    return StatusIs(code, HasSubstr(Path(name)));
  };
  using Code = absl::StatusCode;
  EXPECT_THAT(storage_->OpenFile(Path("none")), error(Code::kNotFound, "none"));
  EXPECT_THAT(storage_->OpenToWrite(Path("none"), nullptr), error(Code::kNotFound, "none"));
  EXPECT_THAT(storage_->CreateFile(Path("no/f"), 1, ""), error(Code::kNotFound, "no/f"));
  EXPECT_THAT(storage_->WriteWhole(Path("no/f"), ""), error(Code::kNotFound, "no/f"));
  EXPECT_THAT(storage_->PublishFile(Path("none"), Path("f")), error(Code::kNotFound, "f"));
  EXPECT_THAT(storage_->RemoveFile(Path("none")), error(Code::kNotFound, "none"));
  EXPECT_THAT(storage_->List(Path("none")), error(Code::kNotFound, "none"));
  MakeFolder("folder", "text");
  EXPECT_THAT(storage_->MakeFolder(Path("folder")), error(Code::kAlreadyExists, "folder"));
  EXPECT_THAT(storage_->OpenFile(Path("folder")), error(Code::kInvalidArgument, "folder"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(storage_->OpenFile(Path("pipe")), error(Code::kInvalidArgument, "pipe"));
  char more[9];
  ASSERT_OK_AND_ASSIGN(const auto file, storage_->OpenFile(Path("folder/text")));
  EXPECT_THAT(file->Read(0, sizeof(more), more), error(Code::kDataLoss, "folder/text"));
}

TEST_F(StorageTest, PathOfAStorageThatThereIsNotIsRefused) {
  for (const char* path : {"gs://bucket/c", "https://host/c"}) {
    EXPECT_THAT(StorageOf(path),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no storage for ")));
  }
  EXPECT_THAT(StorageOf("file:///tmp/c"),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("not with file://")));
}

// Whatever stands where a save would write: nothing is written through it, and it stays.
class InTheWayTest : public StorageTest, public testing::WithParamInterface<const char*> {
 protected:
  void SetUp() override {
    StorageTest::SetUp();
    ASSERT_OK(storage_->WriteWhole(Path("victim"), "precious"));
    const std::string kind = GetParam(), path = Path("in-the-way");
    if (kind == "link") {
      std::filesystem::create_symlink(Path("victim"), path);
    } else if (kind == "dangling link") {
      std::filesystem::create_symlink(Path("nowhere"), path);
    } else if (kind == "pipe") {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    } else {
      std::filesystem::create_directory(path);
    }
  }
  void ExpectRefused(const absl::Status& status) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(Path("in-the-way"))));
    EXPECT_EQ(BytesOf("victim"), "precious");
    EXPECT_FALSE(std::filesystem::exists(Path("nowhere")));
    EXPECT_THAT(Names(), testing::Contains("in-the-way"));
  }
};

TEST_P(InTheWayTest, NothingIsCreatedThroughItOrInItsPlace) {
  ExpectRefused(storage_->CreateFile(Path("in-the-way"), 4, "head"));
  ExpectRefused(storage_->WriteWhole(Path("in-the-way"), "whole"));
}

TEST_P(InTheWayTest, NothingIsPublishedInItsPlace) {
  ASSERT_OK(storage_->CreateFile(Path("f.partial"), 4, "head"));
  ExpectRefused(storage_->PublishFile(Path("f.partial"), Path("in-the-way")));
  EXPECT_EQ(BytesOf("f.partial"), "head");
}

TEST_P(InTheWayTest, ItIsNotRemoved) { ExpectRefused(storage_->RemoveFile(Path("in-the-way"))); }

INSTANTIATE_TEST_SUITE_P(Kinds, InTheWayTest,
                         testing::Values("link", "dangling link", "pipe", "folder"));

TEST_F(StorageTest, LinkThatTakesAFilesPlaceIsNotWrittenThrough) {
  ASSERT_OK(storage_->WriteWhole(Path("victim"), "precious"));
  ASSERT_OK(storage_->CreateFile(Path("f.partial"), 8, "head"));
  ASSERT_TRUE(std::filesystem::remove(Path("f.partial")));
  std::filesystem::create_symlink(Path("victim"), Path("f.partial"));
  EXPECT_FALSE(storage_->OpenToWrite(Path("f.partial"), nullptr).ok());
  EXPECT_EQ(BytesOf("victim"), "precious");
}

}  // namespace
}  // namespace tessera
