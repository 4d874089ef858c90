#include "base/command_line.h"

#include <iostream>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera {
namespace {

bool WantsCommand(const CLI::App& app) {
  return app.get_require_subcommand_min() > 0 && app.get_subcommands().empty();
}

// What the parser did not know, in the order of the command line; empty: nothing.
std::string WhatIsUnknown(const CLI::App& app) {
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  if (rest.empty()) return "";
  if (WantsCommand(app) && !absl::StartsWith(rest[0], "-")) {
    return absl::StrCat("unknown command '", rest[0], "'");
  }
  for (const std::string& each : rest) {
    if (absl::StartsWith(each, "-")) return absl::StrCat("unknown option '", each, "'");
  }
  return absl::StrCat("not expected: ", absl::StrJoin(rest, " "));
}

std::string WhatIsWrong(const CLI::App& app, const CLI::ParseError& error) {
  const bool is_incomplete =
      error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError);
  if (is_incomplete || error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError)) {
    if (std::string unknown = WhatIsUnknown(app); !unknown.empty()) return unknown;
  }
  if (is_incomplete && WantsCommand(app)) return "a command is required";
  return error.what();
}

// A message may hold anything that was typed.
std::string OneLine(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

}  // namespace

std::optional<int> ParseCommandLine(CLI::App* app, std::vector<std::string> args, std::ostream* out,
                                    std::ostream* err) {
  try {
    app->parse(std::vector<std::string>(args.rbegin(), args.rend()));
    return std::nullopt;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version
      app->exit(error, *out, *err);
      out->flush();
      return out->good() ? kExitOk : kExitFailed;
    }
    *err << app->get_name() << ": " << OneLine(WhatIsWrong(*app, error)) << " (see --help)\n";
    return kExitUsage;
  }
}

std::optional<int> ParseCommandLine(CLI::App* app, int argc, char** argv) {
  return ParseCommandLine(app, std::vector<std::string>(argv + 1, argv + argc), &std::cout,
                          &std::cerr);
}

CLI::Validator WholeNumber(int64_t min, int64_t max) {
  const auto check = [min, max](const std::string& text) -> std::string {
    int64_t value = 0;
    const size_t first_digit = text.find_first_not_of("+-");
    const bool is_number = first_digit != std::string::npos && first_digit <= 1 &&
                           text.find_first_not_of("0123456789", first_digit) == std::string::npos;
    if (!is_number) return absl::StrCat("'", text, "' is not a whole number");
    if (absl::SimpleAtoi(text, &value) && value >= min && value <= max) return "";
    return absl::StrCat(text, " is not from ", min, " to ", max);
  };
  CLI::Validator validator(absl::StrCat("in [", min, " - ", max, "]"));
  validator.operation([check](std::string& text) { return check(text); });
  return validator;
}

}  // namespace tessera
