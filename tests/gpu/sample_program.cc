// A program of tests that end in each way that there is, for the tests of what runs such programs.
// FIFO in the environment is the path of one: what hangs opens it and keeps it open.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>

#include "gtest/gtest.h"

namespace {

TEST(SampleTest, Passes) {}
TEST(SampleTest, PassesToo) {}
TEST(SampleTest, Fails) { FAIL() << "as it is meant to"; }
TEST(SampleTest, IsSkipped) { GTEST_SKIP() << "it lacks a thing"; }
TEST(SampleTest, Dies) { raise(SIGSEGV); }
TEST(SampleTest, EndsWithoutResults) { _exit(0); }

// With a child that hangs too.
TEST(SampleTest, Hangs) {
  const char* path = std::getenv("FIFO");
  if (path != nullptr && open(path, O_WRONLY) < 0) _exit(1);
  (void)fork();
  for (;;) pause();
}

class ParameterTest : public testing::TestWithParam<int> {};
TEST_P(ParameterTest, IsEven) { EXPECT_EQ(GetParam() % 2, 0); }
INSTANTIATE_TEST_SUITE_P(Some, ParameterTest, testing::Values(2, 3, 4));

}  // namespace
