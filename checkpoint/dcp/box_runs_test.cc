#include "checkpoint/dcp/box_runs.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "base/status_matchers.h"
#include "gtest/gtest.h"

namespace tessera::dcp {
namespace {

// Of each element of the tensor, its place in the box; -1: outside.
std::vector<int64_t> PlacesInBox(const std::vector<int64_t>& shape,
                                 const std::vector<int64_t>& offsets,
                                 const std::vector<int64_t>& sizes) {
  int64_t numel = 1;
  for (const int64_t size : shape) numel *= size;
  std::vector<int64_t> places(numel, -1);
  for (int64_t i = 0; i < numel; ++i) {
    int64_t rest = i, stride = 1, place = 0;
    bool inside = true;
    for (size_t d = shape.size(); d-- > 0;) {
      const int64_t at = rest % shape[d] - offsets[d];
      rest /= shape[d];
      inside = inside && at >= 0 && at < sizes[d];
      place += at * stride;
      stride *= sizes[d];
    }
    if (inside) places[i] = place;
  }
  return places;
}

TEST(BoxRunsTest, RunsAreTheElementsOfTheBoxInOrder) {
  const int seed = 5;
  std::mt19937 random(seed);
  for (int i = 0; i < 3000; ++i) {
    SCOPED_TRACE(absl::StrCat("seed ", seed, ", case ", i));
    std::vector<int64_t> shape, offsets, sizes;
    for (int d = static_cast<int>(random() % 5); d > 0; --d) {
      shape.push_back(1 + random() % 4);
      sizes.push_back(random() % 3 == 0 ? shape.back() : 1 + random() % shape.back());
      offsets.push_back(random() % (shape.back() - sizes.back() + 1));
    }
    std::vector<int64_t> expected = PlacesInBox(shape, offsets, sizes);
    const int64_t numel = static_cast<int64_t>(expected.size());
    const int64_t begin = random() % (numel + 1), end = begin + random() % (numel - begin + 1);
    for (int64_t e = 0; e < numel; ++e) {
      if (e < begin || e >= end) expected[e] = -1;
    }
    std::vector<int64_t> found(numel, -1);
    int64_t last = -1;
    ASSERT_OK(ForEachRun(shape, offsets, sizes, begin, end, [&](const BoxRun& run) {
      EXPECT_GT(run.tensor_begin_elements, last);
      for (int64_t e = 0; e < run.numel; ++e)
        found.at(run.tensor_begin_elements + e) = run.box_begin_elements + e;
      last = run.tensor_begin_elements + run.numel - 1;
      return absl::OkStatus();
    }));
    ASSERT_EQ(found, expected);
  }
}

TEST(BoxRunsTest, WholeRowsAreOneRun) {
  int num_runs = 0;
  ASSERT_OK(ForEachRun({100, 8, 4}, {20, 0, 0}, {50, 8, 4}, 0, 3200, [&](const BoxRun& run) {
    EXPECT_EQ(run.tensor_begin_elements, 640);
    EXPECT_EQ(run.numel, 1600);
    ++num_runs;
    return absl::OkStatus();
  }));
  EXPECT_EQ(num_runs, 1);
}

TEST(BoxRunsTest, FirstErrorEndsIt) {
  int num_runs = 0;
  EXPECT_EQ(ForEachRun({4, 4}, {0, 0}, {4, 2}, 0, 16,
                       [&](const BoxRun&) {
                         ++num_runs;
                         return absl::DataLossError("x");
                       })
                .code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(num_runs, 1);
}

}  // namespace
}  // namespace tessera::dcp
