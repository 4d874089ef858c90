// Conformance: FLAT-7, FLAT-8 and FLAT-9 through the command line.
#include "client/cli/layout_command.h"

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_matchers.h"
#include "client/cli/cli.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Result {
  int exit_code = -1;
  std::string out;
  std::string err;
};

Result RunTessera(const std::vector<std::string>& args) {
  std::ostringstream out;
  std::ostringstream err;
  const int exit_code = RunCli(args, {&out, &err, false});
  return {exit_code, out.str(), err.str()};
}

std::string WriteSpec(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + "/" + name;
  std::ofstream(path) << text;
  return path;
}

std::string ThreeLinear() {
  return WriteSpec("three_linear.json", R"({"units": [{"name": "mlp", "parameters": [
      {"name": "0.weight", "shape": [7, 3], "dtype": "fp32"},
      {"name": "1.weight", "shape": [5, 7], "dtype": "fp32"},
      {"name": "2.weight", "shape": [5, 5], "dtype": "fp32"}]}]})");
}

std::string HalfPrecision() {
  return WriteSpec("half.json", R"({"units": [{"name": "mlp", "parameters": [
      {"name": "0.weight", "shape": [5, 2], "dtype": "fp16"},
      {"name": "1.weight", "shape": [5, 5], "dtype": "fp16"},
      {"name": "2.weight", "shape": [3, 5], "dtype": "fp16"}]}]})");
}

Json UnitOf(const std::vector<std::string>& args) {
  const Result result = RunTessera(args);
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  const Json json = Json::parse(result.out, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << result.out;
  return json["units"][0];
}

// {in_shard, offset, numel, start, end}; empty: not in the shard.
void ExpectParameter(const Json& unit, int rank, int parameter, const std::vector<int>& expected) {
  const Json& json = unit["ranks"][rank]["parameters"][parameter];
  SCOPED_TRACE(json.dump());
  EXPECT_EQ(unit["ranks"][rank]["rank"], rank);
  EXPECT_EQ(json["name"], std::to_string(parameter) + ".weight");
  EXPECT_EQ(json["in_shard"], !expected.empty());
  const char* const keys[] = {"offset_in_shard", "numel_in_shard", "intra_param_start",
                              "intra_param_end"};
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(json[keys[i]], expected.empty() ? Json(nullptr) : Json(expected[i])) << keys[i];
  }
}

TEST(LayoutCommandTest, AlignedSeedLayout) {  // FLAT-8
  const Json unit = UnitOf({"layout", "--spec", ThreeLinear(), "--world-size", "2",
                            "--param-alignment", "16", "--shard-alignment", "element", "--json"});
  EXPECT_EQ(unit["name"], "mlp");
  EXPECT_EQ(unit["unpadded_numel"], 81);
  EXPECT_EQ(unit["padded_numel"], 86);
  EXPECT_EQ(unit["shard_numel"], 43);
  ASSERT_EQ(unit["ranks"].size(), 2);
  ExpectParameter(unit, 0, 0, {0, 21, 0, 20});
  ExpectParameter(unit, 0, 1, {24, 19, 0, 18});
  ExpectParameter(unit, 0, 2, {});
  ExpectParameter(unit, 1, 0, {});
  ExpectParameter(unit, 1, 1, {0, 16, 19, 34});
  ExpectParameter(unit, 1, 2, {17, 25, 0, 24});
}

TEST(LayoutCommandTest, UnalignedSeedLayout) {  // FLAT-7
  const Json unit = UnitOf({"layout", "--spec", ThreeLinear(), "--world-size", "2",
                            "--param-alignment", "0", "--shard-alignment", "element", "--json"});
  EXPECT_EQ(unit["padded_numel"], 82);
  EXPECT_EQ(unit["shard_numel"], 41);
  ExpectParameter(unit, 0, 1, {21, 20, 0, 19});
  ExpectParameter(unit, 1, 1, {0, 15, 20, 34});
  ExpectParameter(unit, 1, 2, {15, 25, 0, 24});
}

TEST(LayoutCommandTest, AlignmentFollowsTheUnitsDTypeOrTheComputeDType) {  // FLAT-9
  const std::vector<std::string> args = {"layout",       "--spec", HalfPrecision(),
                                         "--world-size", "2",      "--shard-alignment",
                                         "element",      "--json"};
  const Json unit = UnitOf(args);
  EXPECT_EQ(unit["unpadded_numel"], 50);
  EXPECT_EQ(unit["shard_numel"], 32);
  ExpectParameter(unit, 1, 1, {0, 9, 16, 24});
  ExpectParameter(unit, 1, 2, {16, 15, 0, 14});
  std::vector<std::string> in_fp32 = args;
  in_fp32.insert(in_fp32.end(), {"--compute-dtype", "fp32"});
  EXPECT_EQ(UnitOf(in_fp32)["padded_numel"], 56);  // 10 + 2 + 25 + 3 + 15 = 55.
}

TEST(LayoutCommandTest, DrawsRanksAndStatesMemoryOfEachStrategy) {
  const Result result = RunTessera(
      {"layout", "--spec", ThreeLinear(), "--world-size", "2", "--shard-alignment", "element"});
  EXPECT_EQ(result.exit_code, kExitOk) << result.err;
  EXPECT_EQ(
      result.out,
      "unit \"mlp\": fp32, 81 elements in 3 parameters; 2 ranks of 43 hold 86\n"
      "  rank 0 [ 0, 43)  | 0.weight 21 | gap 3 | 1.weight [0, 19) |\n"
      "  rank 1 [43, 86)  | 1.weight [19, 35) | gap 1 | 2.weight 25 | pad 1 |\n"
      "memory per rank (one host, shards fp32, compute fp32, 2 optimizer states)\n"
      "  strategy        parameters    gradients    optimizer unsharded peak   rank total   "
      "host total\n"
      "  FULL_SHARD           172 B        172 B        344 B          344 B      1.0 KiB      "
      "2.0 KiB\n"
      "  SHARD_GRAD_OP        172 B        172 B        344 B          344 B      1.0 KiB      "
      "2.0 KiB\n"
      "  NO_SHARD             344 B        344 B        688 B            0 B      1.3 KiB      "
      "2.7 KiB\n"
      "mapped by one CPU worker with all ranks: 34.0 KiB a rank (28.0 KiB two versions of "
      "parameters and AdamW's state, and the reduced gradient; 4.0 KiB gradient slots; its part of "
      "4.0 KiB shared parameters)\n"
      "mapped by a GPU worker with one rank: 36.0 KiB (28.0 KiB state, 4.0 KiB gradient slots, "
      "4.0 KiB parameters)\n");
}

TEST(LayoutCommandTest, JsonStatesMemoryOfEachStrategy) {
  const Result result =
      RunTessera({"layout", "--spec", ThreeLinear(), "--world-size", "2", "--shard-alignment",
                  "element", "--json", "--optimizer-states", "1"});
  const Json json = Json::parse(result.out, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["world_size"], 2);
  EXPECT_EQ(json["memory"]["FULL_SHARD"]["parameter_bytes"], 172);
  EXPECT_EQ(json["memory"]["SHARD_GRAD_OP"]["optimizer_bytes"], 172);
  EXPECT_EQ(json["memory"]["NO_SHARD"]["rank_total_bytes"], 3 * 344);
  // Seven state arrays, one gradient slot with the byte of each parameter, half of the parameters,
  // each in whole pages.
  EXPECT_EQ(json["cpu_worker"]["state_bytes_per_rank"], 7 * 4096);
  EXPECT_EQ(json["cpu_worker"]["gradient_bytes_per_rank"], 4096 + 3);
  EXPECT_EQ(json["cpu_worker"]["parameter_bytes_per_host"], 4096);
  EXPECT_EQ(json["cpu_worker"]["mapped_bytes_per_rank"], 7 * 4096 + 4096 + 3 + 2048);
  EXPECT_EQ(json["layout_digest"].get<std::string>().size(), 16);
}

TEST(LayoutCommandTest, StatesTheSlotsInWhichAGpusUnitsTakeTurns) {
  std::string units =
      R"({"name": "root", "parameters": [{"name": "r", "shape": [4], "dtype": "fp32"}]})";
  for (int i = 0; i < 6; ++i) {
    units += absl::StrFormat(
        R"(, {"name": "u%d", "parameters": [{"name": "w%d", "shape": [4096], "dtype": "fp32"}]})",
        i, i);
  }
  const std::string spec = WriteSpec("slots.json", "{\"units\": [" + units + "]}");
  const std::vector<std::string> args = {
      "layout", "--spec", spec, "--world-size", "2", "--max-gathered-units", "1"};
  EXPECT_THAT(
      RunTessera(args).out,
      testing::HasSubstr("100.0 KiB parameters: 3 slots of 16.0 KiB, and the rank's slices)\n"));
  std::vector<std::string> in_json = args;
  in_json.push_back("--json");
  const Json json = Json::parse(RunTessera(in_json).out, nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["gpu_worker"]["parameter_slots"], 3);
  EXPECT_EQ(json["gpu_worker"]["parameter_slot_bytes"], 16384);
  // The root's page, half of each of the other units, the slots.
  EXPECT_EQ(json["gpu_worker"]["parameter_bytes"], 4096 + 6 * 8192 + 3 * 16384);
}

TEST(LayoutCommandTest, LimitsOfGatheringAheadBoundTheUnshardedPeak) {
  const std::string spec = WriteSpec("limits.json", R"({"units": [
      {"name": "root", "parameters": [{"name": "r", "shape": [4], "dtype": "fp32"}]},
      {"name": "a", "parameters": [{"name": "a", "shape": [100], "dtype": "fp32"}]},
      {"name": "b", "parameters": [{"name": "b", "shape": [200], "dtype": "fp32"}]}]})");
  const auto gathered = [&](const std::string& flag, const std::string& value) {
    const Result result =
        RunTessera({"layout", "--spec", spec, "--world-size", "2", "--shard-alignment", "element",
                    "--ranks-per-host", "1", "--json", flag, value});
    EXPECT_EQ(result.exit_code, kExitOk) << result.err;
    const Json json = Json::parse(result.out, nullptr, false);
    return json["memory"]["FULL_SHARD"].value("host_unsharded_parameter_bytes", int64_t{-1});
  };
  EXPECT_EQ(gathered("--max-gathered-units", "0"), (4 + 200) * 4);
  EXPECT_EQ(gathered("--max-gathered-units", "1"), (4 + 100 + 200) * 4);
  EXPECT_EQ(gathered("--max-gathered-bytes", "0"), (4 + 100 + 200) * 4);
  EXPECT_EQ(gathered("--max-gathered-bytes", "400"), (4 + 100 + 200) * 4);
  EXPECT_EQ(gathered("--max-gathered-bytes", "399"), (4 + 200) * 4);
}

TEST(LayoutCommandTest, JsonListsSharedParametersOnce) {
  const std::string spec = WriteSpec("tied.json", R"({"units": [{"name": "u", "parameters": [
      {"name": "0.weight", "shape": [4], "dtype": "fp32"},
      {"name": "head", "shared_with": "0.weight"}]}]})");
  const Json unit = UnitOf({"layout", "--spec", spec, "--world-size", "1", "--json"});
  EXPECT_EQ(unit["unpadded_numel"], 4);
  EXPECT_EQ(unit["ranks"][0]["parameters"].size(), 1);
  EXPECT_EQ(unit["shared"][0]["name"], "head");
  EXPECT_EQ(unit["shared"][0]["shared_with"], "0.weight");
}

TEST(LayoutCommandTest, FullDrawsEveryRank) {
  const std::vector<std::string> args = {"layout", "--spec", ThreeLinear(), "--world-size", "80"};
  EXPECT_THAT(RunTessera(args).out, HasSubstr("... 16 more ranks"));
  std::vector<std::string> full = args;
  full.push_back("--full");
  EXPECT_THAT(RunTessera(full).out, HasSubstr("rank 79 ["));
}

TEST(LayoutCommandTest, BadSpecIsOneLineAndExitCodeOne) {
  const std::string spec = WriteSpec("bad.json", R"({"units": [{"name": "u", "parameters": [
      {"name": "w", "shape": [4], "dtype": "int64"}]}]})");
  for (const std::string& path : {spec, std::string("/nonexistent.json"), std::string("/tmp")}) {
    const Result result = RunTessera({"layout", "--spec", path, "--world-size", "2"});
    EXPECT_EQ(result.exit_code, kExitFailed);
    EXPECT_EQ(result.out, "");
    EXPECT_THAT(result.err, HasSubstr("tessera: "));
    EXPECT_THAT(result.err, HasSubstr(path));
    EXPECT_EQ(result.err.find('\n'), result.err.size() - 1);
  }
}

TEST(LayoutCommandTest, AlignmentThatCutsElementsFailsAndNamesTheUnit) {
  const Result result = RunTessera(
      {"layout", "--spec", ThreeLinear(), "--world-size", "2", "--param-alignment", "6"});
  EXPECT_EQ(result.exit_code, kExitFailed);
  EXPECT_THAT(result.err, HasSubstr("unit \"mlp\""));
}

TEST(CliTest, WrongUsageIsExitCodeTwo) {
  const std::string spec = ThreeLinear();
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"unknown"},
      {"layout"},
      {"layout", "--spec", spec},
      {"layout", "--spec", spec, "--world-size", "0"},
      {"layout", "--spec", spec, "--world-size", "two"},
      {"layout", "--spec", spec, "--world-size", "99999999999999999999"},
      {"layout", "--spec", spec, "--world-size", "2", "--param-alignment", "-1"},
      {"layout", "--spec", spec, "--world-size", "2", "--shard-alignment", "elements"},
      {"layout", "--spec", spec, "--world-size", "2", "--compute-dtype", "int32"},
      {"layout", "--spec", spec, "--world-size", "2", "--max-gathered-bytes", "-1"},
      {"layout", "--spec", spec, "--world-size", "2", "--unknown"},
  };
  for (const std::vector<std::string>& args : wrong) {
    SCOPED_TRACE(testing::PrintToString(args));
    const Result result = RunTessera(args);
    EXPECT_EQ(result.exit_code, kExitUsage);
    EXPECT_EQ(result.out, "");
    EXPECT_NE(result.err, "");
  }
}

TEST(CliTest, MisspeltOptionIsNamedBesideAMissingOne) {
  const Result result = RunTessera({"layout", "--spec", ThreeLinear(), "--worldsize", "4"});
  EXPECT_EQ(result.err, "tessera: unknown option '--worldsize' (see --help)\n");
}

TEST(CliTest, VersionGoesToTheOutputAndSucceeds) {
  const Result result = RunTessera({"--version"});
  EXPECT_EQ(result.exit_code, kExitOk);
  EXPECT_THAT(result.out, testing::StartsWith("tessera "));
}

TEST(CliTest, HelpGoesToTheOutputAndSucceeds) {
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{"--help"}, std::vector<std::string>{"layout", "--help"},
        std::vector<std::string>{"help"}, std::vector<std::string>{"help", "layout"}}) {
    const Result result = RunTessera(args);
    EXPECT_EQ(result.exit_code, kExitOk);
    EXPECT_THAT(result.out, HasSubstr("layout"));
  }
}

TEST(CliTest, OutputThatCannotBeWrittenFails) {
  std::ofstream full("/dev/full");
  std::ostringstream err;
  const int exit_code =
      RunCli({"layout", "--spec", ThreeLinear(), "--world-size", "2"}, {&full, &err, false});
  EXPECT_EQ(exit_code, kExitFailed);
  EXPECT_THAT(err.str(), HasSubstr("cannot write"));
}

}  // namespace
}  // namespace tessera::cli
