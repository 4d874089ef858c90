#include "checkpoint/dcp/dcp_metadata.h"

#include <string>
#include <utility>
#include <vector>

#include "base/status_matchers.h"
#include "checkpoint/dcp/pickle_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera::dcp {
namespace {

using namespace pickle_writer;  // NOLINT
using testing::ElementsAre;
using testing::HasSubstr;

using Sizes = std::vector<int64_t>;

std::string Size(const Sizes& sizes) {
  std::vector<std::string> items;
  for (const int64_t size : sizes) items.push_back(Int(size));
  return Call(Global("torch", "Size"), {Tuple(items)});
}

std::string Class(const std::string& name) {
  return Global("torch.distributed.checkpoint.metadata", name);
}

struct Box {
  Sizes offsets, sizes;
};

std::string Tensor(const std::string& dtype, const Sizes& shape, const std::vector<Box>& boxes) {
  std::vector<std::string> chunks;
  for (const Box& box : boxes) {
    chunks.push_back(
        Object(Class("ChunkStorageMetadata"),
               Dict({{Str("offsets"), Size(box.offsets)}, {Str("sizes"), Size(box.sizes)}})));
  }
  return Object(Class("TensorStorageMetadata"),
                Dict({{Str("properties"),
                       Object(Class("TensorProperties"), Tuple({Global("torch", dtype), None()}))},
                      {Str("size"), Size(shape)},
                      {Str("chunks"), List(chunks)}}));
}

std::string Index(const std::string& name, const Sizes& offsets) {
  return Object(
      Class("MetadataIndex"),
      Dict({{Str("fqn"), Str(name)}, {Str("offset"), Size(offsets)}, {Str("index"), Int(0)}}));
}

std::string Place(const std::string& file, int64_t offset, int64_t length,
                  const std::string& transforms = None()) {
  return Object(Global("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
                Dict({{Str("relative_path"), Str(file)},
                      {Str("offset"), Int(offset)},
                      {Str("length"), Int(length)},
                      {Str("transform_descriptors"), transforms}}));
}

using Pairs = std::vector<std::pair<std::string, std::string>>;

std::string Metadata(const Pairs& tensors, const Pairs& places) {
  return Pickled(Object(Class("Metadata"), Dict({{Str("state_dict_metadata"), Dict(tensors)},
                                                 {Str("planner_data"), None()},
                                                 {Str("storage_data"), Dict(places)}})));
}

// A tensor "w" of these boxes, each with a place.
std::string MetadataOf(const Sizes& shape, const std::vector<Box>& boxes,
                       const std::string& dtype = "float32") {
  Pairs places;
  for (const Box& box : boxes) places.emplace_back(Index("w", box.offsets), Place("f", 0, 9));
  return Metadata({{Str("w"), Tensor(dtype, shape, boxes)}}, places);
}

TEST(DcpMetadataTest, TensorsHaveTheirBoxesAndPlaces) {
  const std::string bytes =
      Metadata({{Str("w"), Tensor("bfloat16", {7, 3}, {{{4, 0}, {3, 3}}, {{0, 0}, {4, 3}}})},
                {Str("n"), Object(Class("BytesStorageMetadata"), Dict({}))},
                {Str("s"), Tensor("float64", {}, {{{}, {}}})}},
               {{Index("w", {0, 0}), Place("__0_0.distcp", 0, 100)},
                {Index("w", {4, 0}), Place("__1_0.distcp", 50, 200)},
                {Index("n", {}), Place("__0_0.distcp", 100, 5)},
                {Index("s", {}), Place("__0_0.distcp", 105, 9)}});
  ASSERT_OK_AND_ASSIGN(const auto metadata, DecodeMetadata(bytes));
  ASSERT_EQ(metadata.size(), 2);
  EXPECT_EQ(metadata.at("w").info.dtype, StoredDType::kBf16);
  EXPECT_THAT(metadata.at("w").info.shape, ElementsAre(7, 3));
  ASSERT_EQ(metadata.at("w").chunks.size(), 2);
  EXPECT_EQ(metadata.at("w").chunks[1].file, "__1_0.distcp");
  EXPECT_EQ(metadata.at("w").chunks[1].item.begin_bytes, 50);
  EXPECT_EQ(metadata.at("s").chunks[0].item.size_bytes, 9);
}

TEST(DcpMetadataTest, BoxesThatDoNotCoverTheTensorOnceAreRefused) {
  const struct {
    Sizes shape;
    std::vector<Box> boxes;
    std::string message;
  } kCases[] = {
      {{4, 4}, {{{0, 0}, {2, 4}}}, "leave a hole"},
      {{4, 4}, {}, "leave a hole"},
      {{4, 4}, {{{0, 0}, {2, 4}}, {{1, 0}, {2, 4}}}, "overlap"},
      {{4, 4}, {{{0, 0}, {4, 2}}, {{0, 1}, {4, 2}}}, "overlap"},
      {{4, 4}, {{{0, 0}, {4, 4}}, {{0, 0}, {4, 4}}}, "overlap"},
      {{4, 4}, {{{0, 0}, {5, 4}}}, "outside"},
      {{4, 4}, {{{2, 0}, {3, 4}}}, "outside"},
      {{4, 4}, {{{INT64_MAX, 0}, {4, 4}}}, "outside"},
      {{4, 4}, {{{0}, {16}}}, "do not fit its shape"},
      {{4, 4}, {{{-1, 0}, {4, 4}}}, "do not fit its shape"},
      {{INT64_MAX, 4}, {{{0, 0}, {INT64_MAX, 4}}}, "overflows"},
      {Sizes(65, 1), {{Sizes(65, 0), Sizes(65, 1)}}, "no dtype, size"},
  };
  for (const auto& c : kCases) {
    EXPECT_THAT(DecodeMetadata(MetadataOf(c.shape, c.boxes)),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         testing::AllOf(HasSubstr("'w'"), HasSubstr(c.message))));
  }
  EXPECT_OK(
      DecodeMetadata(MetadataOf({4, 4}, {{{0, 0}, {1, 4}}, {{1, 0}, {3, 1}}, {{1, 1}, {3, 3}}}))
          .status());
  EXPECT_OK(DecodeMetadata(MetadataOf({0, 4}, {{{0, 0}, {0, 4}}})).status());
}

TEST(DcpMetadataTest, PlacesThatAreNoneAreRefused) {
  const std::string tensor = Tensor("float32", {4}, {{{0}, {4}}});
  const auto decode = [&](const std::string& index, const std::string& place) {
    return DecodeMetadata(Metadata({{Str("w"), tensor}}, {{index, place}})).status();
  };
  const std::string index = Index("w", {0});
  EXPECT_OK(decode(index, Place("sub/f", 0, 9)));
  EXPECT_THAT(
      decode(Index("w", {1}), Place("f", 0, 9)),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w': a chunk is in no file")));
  for (const std::string file : {"../f", "/etc/passwd", "", "a/../../f", "."}) {
    EXPECT_THAT(decode(index, Place(file, 0, 9)),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is not in the folder")));
  }
  EXPECT_THAT(decode(index, Place("f", -1, 9)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a place that is none")));
  EXPECT_THAT(decode(index, Place("f", INT64_MAX, 9)),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("a place that is none")));
  EXPECT_THAT(decode(index, Place("f", 0, 9, List({Str("zstd")}))),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("'w' was transformed")));
  EXPECT_THAT(DecodeMetadata(Metadata({{Str("w"), tensor}},
                                      {{index, Place("f", 0, 9)}, {index, Place("f", 9, 9)}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("two places")));
}

std::string ObjectIndex(const std::string& name) {
  return Object(Class("MetadataIndex"),
                Dict({{Str("fqn"), Str(name)}, {Str("offset"), None()}, {Str("index"), None()}}));
}

TEST(DcpMetadataTest, ObjectsAreGivenWithTheirPlacesToWhoAsksForThem) {
  const std::string object = Object(Class("BytesStorageMetadata"), Dict({}));
  const std::string pickle =
      Metadata({{Str("lr"), object}, {Str("w"), Tensor("float32", {}, {{}})}},
               {{ObjectIndex("lr"), Place("f", 7, 9)}, {Index("w", {}), Place("g", 0, 9)}});
  ASSERT_OK_AND_ASSIGN(const Contents contents, DecodeContents(pickle));
  ASSERT_EQ(contents.objects.size(), 1);
  EXPECT_EQ(contents.objects.at("lr").file, "f");
  EXPECT_EQ(contents.objects.at("lr").item.begin_bytes, 7);
  EXPECT_EQ(contents.objects.at("lr").item.size_bytes, 9);
  EXPECT_EQ(contents.tensors.size(), 1);
}

// An unreadable object does not prevent reading tensors.
TEST(DcpMetadataTest, ObjectWithoutAPlaceIsRefusedOnlyWhereObjectsAreAskedFor) {
  const std::string object = Object(Class("BytesStorageMetadata"), Dict({}));
  const struct {
    Pairs places;
    absl::StatusCode code;
    std::string message;
  } kCases[] = {
      {{}, absl::StatusCode::kInvalidArgument, "object 'lr' is in no file"},
      {{{ObjectIndex("lr"), Place("../f", 7, 9)}},
       absl::StatusCode::kInvalidArgument,
       "'../f' is not in the folder"},
      {{{ObjectIndex("lr"), Place("f", 7, 9, List({Str("zstd")}))}},
       absl::StatusCode::kUnimplemented,
       "'lr' was transformed"},
  };
  for (const auto& c : kCases) {
    const std::string pickle = Metadata({{Str("lr"), object}}, c.places);
    EXPECT_THAT(DecodeContents(pickle), StatusIs(c.code, HasSubstr(c.message)));
    EXPECT_OK(DecodeMetadata(pickle));
  }
}

TEST(DcpMetadataTest, AnotherStructureIsRefused) {
  EXPECT_THAT(DecodeMetadata(Pickled(None())),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("something else")));
  EXPECT_THAT(DecodeMetadata(Pickled(Object(Class("Metadata"), Dict({})))),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("no tensors")));
  EXPECT_THAT(DecodeMetadata(Metadata({{Int(1), None()}}, {})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("without a name")));
  EXPECT_THAT(DecodeMetadata(Metadata({{Str("w"), Size({1})}}, {})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w': it is something else")));
  EXPECT_THAT(DecodeMetadata(MetadataOf({1}, {{{0}, {1}}}, "Size")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w': no dtype")));
  const std::string tensor = Tensor("float32", {4}, {{{0}, {4}}});
  EXPECT_THAT(DecodeMetadata(Metadata({{Str("w"), tensor}, {Str("w"), tensor}},
                                      {{Index("w", {0}), Place("f", 0, 9)}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'w': it is there twice")));
  EXPECT_THAT(DecodeMetadata(MetadataOf({1}, {{{0}, {1}}}, "quint8")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'torch.quint8'")));
}

// A list of chunks that many tensors share must not become many lists.
TEST(DcpMetadataTest, ChunksThatManyTensorsShareAreCountedOncePerPlace) {
  Pairs tensors = {{Str("w"), Tensor("float32", {4}, {{{0}, {4}}}) + "q\x07"}};
  for (int i = 0; i < 100; ++i) tensors.emplace_back(Str("x" + std::to_string(i)), "h\x07");
  EXPECT_THAT(DecodeMetadata(Metadata(tensors, {{Index("w", {0}), Place("f", 0, 9)}})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more chunks than places")));
}

}  // namespace
}  // namespace tessera::dcp
