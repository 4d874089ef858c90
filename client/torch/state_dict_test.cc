#include "base/status_matchers.h"
#include "client/torch/state_entry_check.h"
#include "gtest/gtest.h"
#include "tessera/torch/state_dicts.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(StateDictTest, RowsAreThoseOfTorchChunkForEverySize) {
  for (int64_t rows = 1; rows <= 20; ++rows) {
    for (int64_t chunks = 1; chunks <= 9; ++chunks) {
      const torch::Tensor whole = torch::arange(rows * 2).view({rows, 2});
      const std::vector<torch::Tensor> expected = whole.chunk(chunks);
      int64_t before = 0;
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const StateEntry entry = RowsEntry(whole, chunks, chunk);
        const torch::Tensor part = chunk < static_cast<int64_t>(expected.size())
                                       ? expected[chunk]
                                       : torch::empty({0, 2}, torch::kInt64);
        EXPECT_TRUE(torch::equal(entry.tensor, part)) << rows << " rows, chunk " << chunk;
        EXPECT_EQ(entry.begin, before);
        EXPECT_EQ(entry.shape, std::vector<int64_t>({rows, 2}));
        before += part.size(0);
      }
      EXPECT_EQ(before, rows);
    }
  }
}

TEST(StateDictTest, EmptyTensorHasEmptyChunks) {
  const StateEntry entry = RowsEntry(torch::empty({0, 3}), 2, 1);
  EXPECT_EQ(entry.tensor.numel(), 0);
  EXPECT_EQ(entry.begin, 0);
}

TEST(StateEntryCheckTest, WhatIsWrongIsNamedWithItsKey) {
  const ExpectedEntry whole = {StateEntry::Kind::kWhole, {2, 3}, {}};
  const ExpectedEntry rows = {StateEntry::Kind::kRows, {4, 3}, {2, 4}};
  const ExpectedEntry flat = {StateEntry::Kind::kFlat, {10}, {5, 10}};
  EXPECT_OK(CheckStateEntry("w", StateEntry::Whole(torch::ones({2, 3})), whole));
  StateEntry entry = RowsEntry(torch::ones({4, 3}), 2, 1);
  EXPECT_OK(CheckStateEntry("w", entry, rows));
  const auto refused = [](const StateEntry& entry, const ExpectedEntry& expected,
                          const char* text) {
    const absl::Status status = CheckStateEntry("the.key", entry, expected);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("'the.key'")));
    EXPECT_THAT(std::string(status.message()), HasSubstr(text));
  };
  refused(StateEntry(), whole, "no values");
  refused(StateEntry::Whole(torch::ones({2, 3}, torch::kMeta)), whole, "no values");
  refused(StateEntry::Whole(torch::ones({3, 2})), whole, "[3, 2], that of the model [2, 3]");
  refused(entry, whole, "rows of a tensor, where a whole tensor");
  refused(StateEntry::Whole(torch::ones({10})), flat, "a flat part of a unit is wanted");
  refused(RowsEntry(torch::ones({4, 3}), 2, 0), rows, "this rank's part is [2, 4)");
  entry.tensor = torch::ones({1, 3});
  refused(entry, rows, "[2, 3)");
  entry.tensor = torch::ones({2, 2});
  refused(entry, rows, "tensor [2, 2]");
  StateEntry lies = StateEntry::Whole(torch::ones({2, 2}));
  lies.shape = {2, 3};
  refused(lies, whole, "not that of its tensor");
}

}  // namespace
}  // namespace tessera
