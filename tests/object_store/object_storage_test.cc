// What every storage promises, of an object store: moto's server, which checks each signature.
#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/safetensors/crc32.h"
#include "checkpoint/storage/storage.h"
#include "checkpoint/storage/storage_of.h"
#include "checkpoint/storage/storage_patience.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/object_store/object_store.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class ObjectStorageTest : public testing::Test {
 protected:
  void SetUp() override {
    auto started = ObjectStore::Start();
    if (absl::IsNotFound(started.status())) GTEST_SKIP() << started.status().message();
    ASSERT_OK(started);
    store_ = *std::move(started);
    ASSERT_OK_AND_ASSIGN(storage_, StorageOf(Path("")));
  }

  std::string Path(const std::string& name) const { return store_->Path(name); }
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
  void MakeFolder(const std::string& name, const std::string& text) {
    ASSERT_OK(storage_->MakeFolder(Path(name)));
    ASSERT_OK(storage_->WriteWhole(Path(name + "/text"), text));
  }
  void RemoveFolder(const std::string& name) {
    for (const std::string& file : Names(name))
      ASSERT_OK(storage_->RemoveFile(absl::StrCat(Path(name), "/", file)));
    ASSERT_OK(storage_->RemoveEmptyFolder(Path(name)));
  }

  std::unique_ptr<ObjectStore> store_;
  Storage* storage_ = nullptr;
};

std::string Pattern(int64_t size_bytes, int seed) {
  std::string bytes(size_bytes, '\0');
  uint32_t state = seed * 2654435761u + 1;
  for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return bytes;
}

TEST_F(ObjectStorageTest, FileIsWrittenInRangesByManyAndPublishedInPlaceOfAnOlderOne) {
  for (const std::string& text : {std::string("first"), std::string("other")}) {
    ASSERT_OK(storage_->CreateFile(Path("f.partial"), 12, "begin:-"));
    EXPECT_THAT(Names(), testing::Contains("f.partial"));
    ASSERT_OK_AND_ASSIGN(const auto one, storage_->OpenToWrite(Path("f.partial"), nullptr));
    ASSERT_OK_AND_ASSIGN(const auto two, storage_->OpenToWrite(Path("f.partial"), nullptr));
    ASSERT_OK(two->Write(text.substr(2), 9));
    ASSERT_OK(one->Write(text.substr(0, 2), 7));
    ASSERT_OK(one->Sync());
    ASSERT_OK(two->Sync());
    ASSERT_OK(storage_->PublishFile(Path("f.partial"), Path("f")));
    EXPECT_EQ(BytesOf("f"), "begin:-" + text);
    EXPECT_THAT(Names(), UnorderedElementsAre("f"));
  }
  EXPECT_THAT(store_->Keys(), ElementsAre("f")) << "nothing else is left";
}

TEST_F(ObjectStorageTest, LargeFileIsUploadedInPartsAndPutTogetherByTheStore) {
  // Two writers whose ranges alternate, small ones between large ones.
  const std::vector<int64_t> sizes = {100, 21 << 20, 5'000, 6 << 20, 1, 9 << 20, 300};
  std::string all = "header";
  for (size_t i = 0; i < sizes.size(); ++i) all += Pattern(sizes[i], i);
  ASSERT_OK(storage_->CreateFile(Path("f.partial"), all.size(), "header"));
  ASSERT_OK_AND_ASSIGN(const auto one, storage_->OpenToWrite(Path("f.partial"), nullptr));
  ASSERT_OK_AND_ASSIGN(const auto two, storage_->OpenToWrite(Path("f.partial"), nullptr));
  int64_t at = 6, told = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    uint32_t crc32 = kCrc32OfNothing;
    const std::string bytes = all.substr(at, sizes[i]);
    ASSERT_OK(
        (i % 2 == 0 ? one : two)->Write(bytes, at, &crc32, [&](int64_t wrote) { told += wrote; }));
    EXPECT_EQ(crc32, Crc32(bytes));
    at += sizes[i];
  }
  EXPECT_EQ(told, at - 6);
  ASSERT_OK(one->Sync());
  ASSERT_OK(two->Sync());
  ASSERT_OK(storage_->PublishFile(Path("f.partial"), Path("f")));
  ASSERT_TRUE(BytesOf("f") == all);
  EXPECT_THAT(store_->Keys(), ElementsAre("f"));
  EXPECT_THAT(store_->Uploads(), IsEmpty());

  // In pieces, and in small reads that follow each other or do not.
  ASSERT_OK_AND_ASSIGN(const auto file, storage_->OpenFile(Path("f")));
  const auto room = std::make_unique<ReadableFile::PieceRoom>();
  std::string pieces;
  ASSERT_OK(file->ReadInPieces(3, all.size() - 5, room.get(), [&](absl::Span<const char> piece) {
    pieces.append(piece.data(), piece.size());
  }));
  ASSERT_TRUE(pieces == all.substr(3, all.size() - 5));
  for (const int64_t begin : {int64_t{0}, int64_t{8}, int64_t{1'000'000}, int64_t{16}}) {
    std::string some(8, '\0');
    ASSERT_OK(file->Read(begin, 8, some.data()));
    EXPECT_EQ(some, all.substr(begin, 8));
  }
  char more[9];
  EXPECT_THAT(file->Read(all.size() - 8, 9, more),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/f: bytes")));
}

TEST_F(ObjectStorageTest, BytesThatNobodyWroteOrTwoDidAreNotPublished) {
  ASSERT_OK(storage_->CreateFile(Path("f.partial"), 30, "head"));
  const auto write = [&](int64_t begin, int64_t size) {
    auto sink = storage_->OpenToWrite(Path("f.partial"), nullptr);
    ASSERT_OK(sink);
    ASSERT_OK((*sink)->Write(std::string(size, 'x'), begin));
    ASSERT_OK((*sink)->Sync());
  };
  write(4, 10);
  EXPECT_THAT(storage_->PublishFile(Path("f.partial"), Path("f")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("[14, 30) were not written")));
  write(10, 20);
  EXPECT_THAT(storage_->PublishFile(Path("f.partial"), Path("f")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("written by two")));
  EXPECT_THAT(Names(), ElementsAre("f.partial"));
  ASSERT_OK(storage_->RemoveFile(Path("f.partial")));
  EXPECT_THAT(store_->Keys(), IsEmpty());
}

TEST_F(ObjectStorageTest, WriterThatGivesUpLeavesNoUpload) {
  ASSERT_OK(storage_->CreateFile(Path("f.partial"), 40 << 20, "head"));
  {
    ASSERT_OK_AND_ASSIGN(const auto sink, storage_->OpenToWrite(Path("f.partial"), nullptr));
    ASSERT_OK(sink->Write(std::string(20 << 20, 'x'), 4));
    EXPECT_THAT(store_->Uploads(), testing::SizeIs(1));
  }
  EXPECT_THAT(store_->Uploads(), IsEmpty());
}

TEST_F(ObjectStorageTest, FolderIsPublishedWhereNothingIsAndInPlaceOfAnotherAndCanBeUndone) {
  MakeFolder("runs/c.partial", "old");
  EXPECT_THAT(Names("runs"), ElementsAre("c.partial"));
  ASSERT_OK(storage_->PublishFolder(Path("runs/c.partial"), Path("runs/c"), /*exchange=*/false));
  EXPECT_EQ(BytesOf("runs/c/text"), "old");
  EXPECT_THAT(Names("runs"), ElementsAre("c"));
  EXPECT_THAT(Names("runs/c"), ElementsAre("text"));
  MakeFolder("runs/c.partial", "new");
  EXPECT_THAT(storage_->PublishFolder(Path("runs/c.partial"), Path("runs/c"), /*exchange=*/false),
              StatusIs(absl::StatusCode::kAlreadyExists, HasSubstr(Path("runs/c"))));
  EXPECT_EQ(BytesOf("runs/c.partial/text"), "new");
  EXPECT_EQ(BytesOf("runs/c/text"), "old");
  ASSERT_OK(storage_->PublishFolder(Path("runs/c.partial"), Path("runs/c"), /*exchange=*/true));
  EXPECT_EQ(BytesOf("runs/c/text"), "new");
  EXPECT_EQ(BytesOf("runs/c.partial/text"), "old");
  EXPECT_THAT(Names("runs"), UnorderedElementsAre("c", "c.partial"));
  ASSERT_OK(storage_->UnpublishFolder(Path("runs/c"), Path("runs/c.partial"), /*exchange=*/true));
  EXPECT_EQ(BytesOf("runs/c/text"), "old");
  EXPECT_EQ(BytesOf("runs/c.partial/text"), "new");
  RemoveFolder("runs/c.partial");
  EXPECT_EQ(BytesOf("runs/c/text"), "old");
  ASSERT_OK(storage_->RetireFolder(Path("runs/c"), Path("runs/c.partial")));
  EXPECT_THAT(BytesOf("runs/c/text"), HasSubstr("NOT_FOUND"));
  RemoveFolder("runs/c.partial");
  EXPECT_THAT(store_->Keys(), IsEmpty()) << "nothing is left";
}

TEST_F(ObjectStorageTest, OfSaversAtOnceOneGetsTheName) {
  constexpr int kSavers = 8;
  MakeFolder("c.partial", "text");
  std::vector<std::thread> threads;
  std::vector<absl::Status> results(kSavers);
  for (int i = 0; i < kSavers; ++i) {
    threads.emplace_back([&, i] {
      results[i] = storage_->PublishFolder(Path("c.partial"), Path("c"), /*exchange=*/false);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::count_if(results.begin(), results.end(),
                          [](const absl::Status& status) { return status.ok(); }),
            1);
  EXPECT_EQ(BytesOf("c/text"), "text");
}

TEST_F(ObjectStorageTest, SaveThatWasOvertakenNeitherWritesNorNamesWhatIsAnothers) {
  MakeFolder("c.partial", "first");
  // As another process: it removes what it finds, and begins its own.
  const std::string state = "c/.tessera-folder.json", other(32, 'a');
  store_->Ask({{"do", "put"},
               {"key", state},
               {"text", absl::StrCat(R"({"format": "tessera.folder.1", "published": null, )",
                                     R"("partial": ")", other, "\"}")}});
  store_->Ask({{"do", "put"}, {"key", "c/save-" + other + "/half"}, {"text", "half"}});
  const auto anothers =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another save writes"));
  EXPECT_THAT(storage_->WriteWhole(Path("c.partial/manifest.json"), "mine"), anothers);
  EXPECT_THAT(storage_->CreateFile(Path("c.partial/f.partial"), 4, "mine"), anothers);
  EXPECT_THAT(storage_->PublishFolder(Path("c.partial"), Path("c"), false), anothers);
  EXPECT_THAT(Names(), ElementsAre("c.partial"));
  EXPECT_THAT(Names("c.partial"), ElementsAre("half"));
}

TEST_F(ObjectStorageTest, NewSaveRemovesWhatDeadOnesLeftAndNothingElse) {
  MakeFolder("c.partial", "old");
  ASSERT_OK(storage_->PublishFolder(Path("c.partial"), Path("c"), /*exchange=*/false));
  const std::string dead = "c/save-" + std::string(32, 'd') + "/";
  store_->Ask(
      {{"do", "put"}, {"key", dead + "model.safetensors.partial/create.json"}, {"text", "{}"}});
  store_->Ask({{"do", "put"}, {"key", "c/users-own"}, {"text", "precious"}});
  MakeFolder("c.partial", "new");
  for (const std::string& key : store_->Keys()) EXPECT_FALSE(absl::StartsWith(key, dead)) << key;
  EXPECT_THAT(store_->Keys(), testing::Contains("c/users-own"));
  EXPECT_EQ(BytesOf("c/text"), "old");
  EXPECT_EQ(BytesOf("c.partial/text"), "new");
}

TEST_F(ObjectStorageTest, NamesWithAnyCharactersAreThatOfTheirObject) {
  const std::vector<std::string> names = {"a b",    "a+b",       "a%2Fb",
                                          "a%b",    "a&b<c>",    "a?b=c",
                                          "a#b",    "\xc3\xbc",  "\xe6\xa8\xa1\xe5\x9e\x8b",
                                          "a'b\"c", "..a",       "a..",
                                          "-._~",   "(a)[b]{c}", "a;b,c:d@e!f$g*h^i`j|k\\l"};
  for (const std::string& name : names) {
    ASSERT_OK(storage_->WriteWhole(Path("x/" + name), name));
    ASSERT_OK_AND_ASSIGN(const auto info, storage_->Look(Path("x/" + name)));
    ASSERT_TRUE(info.has_value()) << name;
    EXPECT_EQ(BytesOf("x/" + name), name);
    MakeFolder("y/" + name + ".partial", name);
    ASSERT_OK(storage_->PublishFolder(Path("y/" + name + ".partial"), Path("y/" + name), false));
    EXPECT_EQ(BytesOf("y/" + name + "/text"), name);
    // The store copies from a key with that name, too.
    ASSERT_OK(
        storage_->CreateFile(Path("z/" + name + ".partial"), 6 << 20, std::string(6 << 20, 'z')));
    ASSERT_OK(storage_->PublishFile(Path("z/" + name + ".partial"), Path("z/" + name)));
  }
  EXPECT_THAT(Names("x"), testing::UnorderedElementsAreArray(names));
  EXPECT_THAT(Names("y"), testing::UnorderedElementsAreArray(names));
  EXPECT_THAT(Names("z"), testing::UnorderedElementsAreArray(names));
  for (const char* path : {"x/../y", "x/..", "./x", "x//y"})
    EXPECT_THAT(storage_->Look(Path(path)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'.' or '..'")));
}

TEST_F(ObjectStorageTest, ListsGoOnAfterAThousandNames) {
  for (int i = 0; i < 1'003; ++i)
    store_->Ask({{"do", "put"}, {"key", absl::StrCat("many/", i)}, {"text", ""}});
  EXPECT_THAT(Names("many"), testing::SizeIs(1'003));
}

TEST_F(ObjectStorageTest, WhatThereIsIsSeenAndWhatThereIsNotIsNot) {
  ASSERT_OK(storage_->WriteWhole(Path("folder/file"), "12345"));
  const auto look = [&](const std::string& name) {
    const auto info = storage_->Look(Path(name));
    EXPECT_OK(info);
    return info.value_or(std::nullopt);
  };
  ASSERT_TRUE(look("folder/file").has_value());
  EXPECT_EQ(look("folder/file")->kind, EntryInfo::Kind::kFile);
  EXPECT_EQ(look("folder/file")->size_bytes, 5);
  EXPECT_GT(look("folder/file")->changed_at, absl::UnixEpoch());
  ASSERT_TRUE(look("folder").has_value());
  EXPECT_EQ(look("folder")->kind, EntryInfo::Kind::kFolder);
  EXPECT_EQ(look("")->kind, EntryInfo::Kind::kFolder);
  for (const char* name : {"fold", "folder/fil", "folder/file/x", "folder.partial", "nothing"})
    EXPECT_EQ(look(name), std::nullopt) << name;
  EXPECT_THAT(storage_->List(Path("nothing")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("nothing"))));
  EXPECT_THAT(storage_->OpenFile(Path("folder")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr(Path("folder"))));
  EXPECT_THAT(storage_->RemoveEmptyFolder(Path("folder")),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("something is in it")));
  // Which folder it is, whatever its name.
  MakeFolder("c.partial", "old");
  const auto made = look("c.partial")->identity;
  ASSERT_OK(storage_->PublishFolder(Path("c.partial"), Path("c"), false));
  EXPECT_EQ(look("c")->identity, made);
  EXPECT_EQ(look("c.partial"), std::nullopt);
  MakeFolder("c.partial", "new");
  EXPECT_NE(look("c.partial")->identity, made);
}

TEST_F(ObjectStorageTest, FileThatIsReplacedWhileItIsReadIsNotMixed) {
  ASSERT_OK(storage_->WriteWhole(Path("f"), std::string(2 << 20, 'a')));
  ASSERT_OK_AND_ASSIGN(const auto file, storage_->OpenFile(Path("f")));
  ASSERT_OK(storage_->WriteWhole(Path("f"), std::string(2 << 20, 'b')));
  std::string bytes(1 << 20, '\0');
  EXPECT_THAT(file->Read(0, 1 << 20, bytes.data()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("removed or replaced")));
}

TEST_F(ObjectStorageTest, ErrorsNameThePathTheStoresCodeAndWhatToDo) {
  EXPECT_THAT(storage_->List("s3://no-such-bucket/c"),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("s3://no-such-bucket/"), HasSubstr("404"),
                             HasSubstr("NoSuchBucket"), HasSubstr("create the bucket"))));
  const std::string secret = getenv("AWS_SECRET_ACCESS_KEY");
  setenv("AWS_SECRET_ACCESS_KEY", "wrong", 1);
  EXPECT_THAT(storage_->WriteWhole(Path("f"), "x"),
              StatusIs(absl::StatusCode::kPermissionDenied,
                       AllOf(HasSubstr("HTTP 403"), HasSubstr("SignatureDoesNotMatch"),
                             HasSubstr("AWS_SECRET_ACCESS_KEY"), Not(HasSubstr("wrong")))));
  setenv("AWS_SECRET_ACCESS_KEY", secret.c_str(), 1);
  unsetenv("AWS_ACCESS_KEY_ID");
  setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere", 1);
  EXPECT_THAT(storage_->WriteWhole(Path("f"), "x"),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("/nowhere")));
}

TEST_F(ObjectStorageTest, StoreThatIsAwayIsGivenUpInTime) {
  setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", 1);
  const StoragePatience patience(absl::Seconds(1));
  EXPECT_THAT(storage_->WriteWhole(Path("f"), "x"),
              StatusIs(absl::StatusCode::kInternal,
                       AllOf(HasSubstr("s3://test-bucket/"), HasSubstr("AWS_ENDPOINT_URL_S3"))));
}

}  // namespace
}  // namespace tessera
