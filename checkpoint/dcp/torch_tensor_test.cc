#include "checkpoint/dcp/torch_tensor.h"

#include <stdlib.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "checkpoint/dcp/pickle_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::dcp {
namespace {

using namespace pickle_writer;  // NOLINT
using testing::ElementsAre;
using testing::HasSubstr;

struct Member {
  std::string name, data;
  int method = 0, flags = 0;
};

// A zip of stored members.
std::string Zip(const std::vector<Member>& members) {
  std::string bytes, directory;
  for (const Member& member : members) {
    const std::string sizes = Word(member.data.size(), 4) + Word(member.data.size(), 4);
    const std::string names = Word(member.name.size(), 2);
    directory += "PK\x01\x02" + Word(0, 4) + Word(member.flags, 2) + Word(member.method, 2) +
                 Word(0, 8) + sizes + names + Word(0, 12) + Word(bytes.size(), 4) + member.name;
    bytes += "PK\x03\x04" + Word(0, 2) + Word(member.flags, 2) + Word(member.method, 2) +
             Word(0, 8) + sizes + names + Word(0, 2) + member.name + member.data;
  }
  return bytes + directory + "PK\x05\x06" + Word(0, 4) + Word(members.size(), 2) +
         Word(members.size(), 2) + Word(directory.size(), 4) + Word(bytes.size(), 4) + Word(0, 2);
}

std::string Rebuild(const std::string& storage_class, int64_t storage_numel, int64_t offset,
                    const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  std::vector<std::string> size_items, stride_items;
  for (const int64_t size : sizes) size_items.push_back(Int(size));
  for (const int64_t stride : strides) stride_items.push_back(Int(stride));
  const std::string storage = Tuple({Str("storage"), Global("torch", storage_class), Str("0"),
                                     Str("cpu"), Int(storage_numel)}) +
                              "Q";
  return Pickled(Call(Global("torch._utils", "_rebuild_tensor_v2"),
                      {storage, Int(offset), Tuple(size_items), Tuple(stride_items), "\x89",
                       Call(Global("collections", "OrderedDict"), {})}));
}

class TorchTensorTest : public testing::Test {
 protected:
  // What a file says of which bytes [before, before + zip.size()) are the zip.
  absl::StatusOr<TorchTensor> Locate(const std::string& zip, const std::string& before = "") {
    std::string path = testing::TempDir() + "/tessera-zip-XXXXXX";
    const int fd = mkstemp(path.data());
    EXPECT_GE(fd, 0);
    close(fd);
    std::ofstream(path, std::ios::binary) << before << zip << "behind it";
    auto file = OpenRegularFile(path);
    EXPECT_OK(file.status());
    unlink(path.c_str());
    return LocateTorchTensor(
        *file, {static_cast<int64_t>(before.size()), static_cast<int64_t>(zip.size())});
  }
};

TEST_F(TorchTensorTest, SaysWhatTheTensorIsAndWhereItLies) {
  const std::string zip = Zip({{"archive/data.pkl", Rebuild("FloatStorage", 20, 5, {2, 3}, {3, 1})},
                               {"archive/byteorder", "little"},
                               {"archive/data/0", std::string(80, 'x')}});
  ASSERT_OK_AND_ASSIGN(const TorchTensor tensor, Locate(zip, "before"));
  EXPECT_EQ(tensor.dtype, StoredDType::kF32);
  EXPECT_THAT(tensor.sizes, ElementsAre(2, 3));
  EXPECT_EQ(tensor.offset_elements, 5);
  EXPECT_TRUE(tensor.IsContiguous());
  EXPECT_EQ(tensor.storage.size_bytes, 80);
  EXPECT_EQ(("before" + zip).substr(tensor.storage.begin_bytes, 80), std::string(80, 'x'));
}

TEST_F(TorchTensorTest, TensorsThatLeaveTheirStorageAreRefused) {
  const auto locate = [&](int64_t numel, int64_t offset, const std::vector<int64_t>& sizes,
                          const std::vector<int64_t>& strides) {
    return Locate(Zip({{"a/data.pkl", Rebuild("FloatStorage", numel, offset, sizes, strides)},
                       {"a/data/0", std::string(80, 'x')}}))
        .status();
  };
  EXPECT_OK(locate(20, 0, {4, 5}, {5, 1}));
  EXPECT_OK(locate(20, 0, {5, 4}, {1, 5}));
  EXPECT_OK(locate(20, 99, {0, 5}, {5, 1}));
  const absl::Status leaves[] = {locate(20, 1, {4, 5}, {5, 1}), locate(20, 0, {4, 5}, {6, 1}),
                                 locate(20, 20, {}, {}), locate(20, 0, {INT64_MAX}, {INT64_MAX}),
                                 locate(20, INT64_MAX, {2}, {1})};
  for (const absl::Status& status : leaves)
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("leaves its storage")));
  EXPECT_THAT(locate(21, 0, {4, 5}, {5, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("its storage is cut")));
  EXPECT_THAT(locate(20, -1, {1}, {1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no offset")));
  EXPECT_THAT(locate(20, 0, {1}, {1, 1}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no offset, size")));
}

TEST_F(TorchTensorTest, ArchivesThatAreNotOfTheFormatAreRefused) {
  const Member pickle = {"a/data.pkl", Rebuild("FloatStorage", 1, 0, {1}, {1})};
  const Member data = {"a/data/0", "abcd"};
  const struct {
    std::string zip, message;
  } kCases[] = {
      {"", "zip"},
      {"no zip, but long enough for its end", "no end of a zip"},
      {Zip({data}), "something else"},
      {Zip({pickle}), "its storage is not there"},
      {Zip({pickle, {"b/data.pkl", ""}, data}), "more than one"},
      {Zip({pickle, data, data}), "'a/data/0' is there twice"},
      {Zip({pickle, {"a/data/0", "abcd", 8}}), "'a/data/0' is compressed"},
      {Zip({pickle, {"a/data/0", "abcd", 0, 1}}), "'a/data/0' is encrypted"},
      {Zip({pickle, data, {"a/byteorder", "big"}}), "byte order"},
      {Zip({{"a/data.pkl", Pickled(Call(Global("os", "system"), {Str("true")}))}, data}),
       "'os.system'"},
      {Zip({{"a/data.pkl", Pickled(None())}, data}), "something else"},
      {Zip({{"a/data.pkl", Rebuild("QInt8Storage", 1, 0, {1}, {1})}, data}), "QInt8Storage"},
      {Zip({pickle, data}) + "x", "no end of a zip"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(Locate(c.zip), StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(c.message)))
        << c.message;
  }
}

TEST_F(TorchTensorTest, AnyFlippedByteOrTruncationIsRefusedOrStillLiesInTheZip) {
  const std::string zip = Zip({{"a/data.pkl", Rebuild("FloatStorage", 20, 5, {2, 3}, {3, 1})},
                               {"a/data/0", std::string(80, 'x')}});
  const int seed = 9;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int i = 0; i < 1500; ++i) {
    std::string damaged = zip.substr(0, i < 100 ? zip.size() - i : zip.size());
    if (i >= 100) damaged[random() % damaged.size()] ^= static_cast<char>(1 << (random() % 8));
    const auto tensor = Locate(damaged);
    if (!tensor.ok()) continue;
    EXPECT_GE(tensor->storage.begin_bytes, 0);
    EXPECT_LE(tensor->storage.begin_bytes + tensor->storage.size_bytes, damaged.size());
  }
}

}  // namespace
}  // namespace tessera::dcp
