#include "shm/populate_pages.h"

#include <atomic>
#include <cstdint>
#include <new>
#include <thread>

#include "base/page_bytes.h"
#include "base/status_matchers.h"
#include "shm/region.h"

namespace tessera {
namespace {

constexpr int64_t kPages = 4;

class PopulatePagesTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(const SharedRegion region,
                         SharedRegion::Create("populate", kPages * kPageBytes));
    ASSERT_OK_AND_ASSIGN(memory_, Mapping::CreateWhole(region.fd(), Access::kReadWrite));
  }

  Mapping memory_;
};

TEST_F(PopulatePagesTest, ContentStays) {
  for (int64_t i = 0; i < memory_.size_bytes(); i += 511) memory_.data()[i] = std::byte(i % 251);
  PopulatePages(memory_.data(), memory_.size_bytes());
  TouchEachPage(memory_.data(), memory_.size_bytes());
  for (int64_t i = 0; i < memory_.size_bytes(); i += 511)
    ASSERT_EQ(memory_.data()[i], std::byte(i % 251)) << i;
}

// An executor writes to the memory that its trainer maps.
TEST_F(PopulatePagesTest, WriteOfAnotherThreadIsNeverUndone) {
  auto* first = new (memory_.data()) std::atomic<uint8_t>(0);
  std::atomic<bool> done = false;
  int64_t undone = 0;
  std::thread writer([&] {
    for (uint32_t i = 1; i <= 3'000'000; ++i) {
      first->store(static_cast<uint8_t>(i));
      if (first->load() != static_cast<uint8_t>(i)) ++undone;
    }
    done = true;
  });
  while (!done) TouchEachPage(memory_.data(), kPageBytes);
  writer.join();
  EXPECT_EQ(undone, 0);
}

}  // namespace
}  // namespace tessera
