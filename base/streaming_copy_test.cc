#include "base/streaming_copy.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tessera {
namespace {

TEST(StreamingCopyTest, CopiesJustTheBytesWhateverTheAlignment) {
  std::vector<unsigned char> from(700);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<unsigned char>(i * 37 + i / 256);
  for (int to_offset = 0; to_offset < 65; ++to_offset) {
    for (const int from_offset : {0, 1, 4, 63}) {
      for (const int size : {0, 1, 15, 16, 63, 64, 65, 128, 129, 500}) {
        std::vector<unsigned char> to(700, 0xEE);
        std::vector<unsigned char> expected = to;
        for (int i = 0; i < size; ++i) expected[to_offset + i] = from[from_offset + i];
        std::vector<unsigned char> ahead = to;
        StreamingCopy(to.data() + to_offset, from.data() + from_offset, size);
        FlushStreamed();
        ASSERT_EQ(to, expected) << to_offset << " " << from_offset << " " << size;
        CopyAhead(ahead.data() + to_offset, from.data() + from_offset, size);
        ASSERT_EQ(ahead, expected) << to_offset << " " << from_offset << " " << size;
      }
    }
  }
}

}  // namespace
}  // namespace tessera
