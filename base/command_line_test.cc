#include "base/command_line.h"

#include <sstream>

#include "CLI/CLI.hpp"
#include "gtest/gtest.h"

namespace tessera {
namespace {

struct Parsed {
  std::optional<int> exit_code;
  std::string out, err;
  int64_t steps = 0;
};

// A program with one option of its own and, on demand, with commands.
Parsed Parse(const std::vector<std::string>& args, bool with_command = false) {
  Parsed parsed;
  std::string other;
  CLI::App app("A test.", "prog");
  app.set_version_flag("--version", std::string("prog 1"));
  CLI::App* owner = &app;
  if (with_command) {
    app.require_subcommand(1);
    owner = app.add_subcommand("run");
  }
  owner->add_option("--steps", parsed.steps)->required()->check(WholeNumber(3, 1000));
  owner->add_option("--other", other);
  std::ostringstream out, err;
  parsed.exit_code = ParseCommandLine(&app, args, &out, &err);
  parsed.out = out.str();
  parsed.err = err.str();
  return parsed;
}

TEST(CommandLineTest, GoodOneGoesOn) {
  const Parsed parsed = Parse({"--steps", "3"});
  EXPECT_EQ(parsed.exit_code, std::nullopt) << parsed.err;
  EXPECT_EQ(parsed.steps, 3);
  EXPECT_EQ(Parse({"run", "--steps=1000"}, true).steps, 1000);
}

TEST(CommandLineTest, WrongUsageIsTwoAndOneLineThatSaysWhat) {
  const struct {
    std::vector<std::string> args;
    bool with_command;
    const char* says;
  } kCases[] = {
      {{}, false, "--steps is required"},
      {{"--stesp", "3"}, false, "unknown option '--stesp'"},
      {{"--steps", "3", "a", "b"}, false, "not expected: a b"},
      {{"--steps", "abc"}, false, "--steps: 'abc' is not a whole number"},
      {{"--steps", "1e3"}, false, "--steps: '1e3' is not a whole number"},
      {{"--steps", "+-3"}, false, "--steps: '+-3' is not a whole number"},
      {{"--steps", "2"}, false, "--steps: 2 is not from 3 to 1000"},
      {{"--steps", "99999999999999999999"},
       false,
       "--steps: 99999999999999999999 is not from 3 to 1000"},
      {{"--steps", "-1"}, false, "--steps: -1 is not from 3 to 1000"},
      {{}, true, "a command is required"},
      {{"rnu"}, true, "unknown command 'rnu'"},
      {{"rnu", "--steps", "3"}, true, "unknown command 'rnu'"},
      {{"--fast"}, true, "unknown option '--fast'"},
      {{"run", "--stesp", "4"}, true, "unknown option '--stesp'"},
      {{"run", "--steps", "4", "now\n"}, true, "not expected: now?"},
  };
  for (const auto& expected : kCases) {
    const Parsed parsed = Parse(expected.args, expected.with_command);
    EXPECT_EQ(parsed.exit_code, kExitUsage);
    EXPECT_EQ(parsed.err, std::string("prog: ") + expected.says + " (see --help)\n");
    EXPECT_EQ(parsed.out, "");
  }
}

TEST(CommandLineTest, HelpAndVersionGoToTheOutputAndSucceed) {
  const Parsed help = Parse({"--help"});
  EXPECT_EQ(help.exit_code, kExitOk);
  EXPECT_NE(help.out.find("--steps"), std::string::npos);
  EXPECT_NE(help.out.find("in [3 - 1000]"), std::string::npos);
  const Parsed version = Parse({"--version"});
  EXPECT_EQ(version.exit_code, kExitOk);
  EXPECT_EQ(version.out, "prog 1\n");
}

}  // namespace
}  // namespace tessera
