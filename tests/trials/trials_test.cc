// Each case of tools/trials in few settings: strategies, dtypes, numbers of units and of ranks.
#include <string>

#include "base/status_matchers.h"
#include "gtest/gtest.h"
#include "tests/trials/trial_run.h"

namespace tessera::trials {
namespace {

class TrialsTest : public testing::TestWithParam<TrialCase> {};

TEST_P(TrialsTest, TrainsAsThePlainModuleOrIsRefusedByName) {
  for (const Setting& setting : FewSettings()) {
    if (!Applies(GetParam(), setting)) continue;
    EXPECT_OK(RunTrial(GetParam(), setting, testing::TempDir())) << NameOf(setting);
  }
}

std::string CaseName(const testing::TestParamInfo<TrialCase>& info) {
  std::string name;
  for (const char c : info.param.name) name += c == '-' ? '_' : c;
  return name;
}

INSTANTIATE_TEST_SUITE_P(Cases, TrialsTest, testing::ValuesIn(AllTrialCases()), CaseName);

}  // namespace
}  // namespace tessera::trials
