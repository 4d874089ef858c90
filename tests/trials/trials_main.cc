// Compares training code as people write it with the plain module; see docs/trials.md.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/command_line.h"
#include "base/log.h"
#include "nlohmann/json.hpp"
#include "tests/trials/trial_run.h"

namespace {

using tessera::trials::AllSettings;
using tessera::trials::AllTrialCases;
using tessera::trials::FewSettings;
using tessera::trials::Setting;
using tessera::trials::TrialCase;

struct Failure {
  std::string setting, why;
};

// Returns what differed. `tried`: in how many settings.
std::vector<Failure> Try(const TrialCase& trial, const std::vector<Setting>& settings,
                         const std::string& folder, size_t* tried) {
  std::vector<Failure> failures;
  for (const Setting& setting : settings) {
    if (!Applies(trial, setting)) continue;
    ++*tried;
    const absl::Status status = tessera::trials::RunTrial(trial, setting, folder);
    if (!status.ok()) failures.push_back({NameOf(setting), status.ToString()});
  }
  return failures;
}

std::string ExpectationOf(const TrialCase& trial) {
  if (trial.last_rank != tessera::trials::LastRank::kTrains) return "the rank is named";
  return trial.refusal.empty() ? "as the plain module" : "refused by name";
}

}  // namespace

int main(int argc, char** argv) {
  bool few = false, json = false;
  CLI::App app("Training code as people write it, beside the plain module", "tools/trials");
  app.add_flag("--few", few, "Twelve settings in place of 108");
  app.add_flag("--json", json, "Print a line of JSON for each case");
  app.require_subcommand(1);
  const std::vector<TrialCase> cases = AllTrialCases();
  std::vector<const TrialCase*> chosen;
  app.add_subcommand("all", "every case")->callback([&] {
    for (const TrialCase& trial : cases) chosen.push_back(&trial);
  });
  for (const TrialCase& trial : cases) {
    app.add_subcommand(trial.name, trial.what)->callback([&chosen, &trial] {
      chosen.push_back(&trial);
    });
  }
  if (const auto ended = tessera::ParseCommandLine(&app, argc, argv)) return *ended;
  TESSERA_CHECK(tessera::SetLogLevel("error").ok());
  std::string folder = std::filesystem::temp_directory_path().string() + "/tessera_trials_XXXXXX";
  TESSERA_CHECK(mkdtemp(folder.data()) != nullptr);

  const std::vector<Setting> settings = few ? FewSettings() : AllSettings();
  bool all_ok = true;
  for (const TrialCase* trial : chosen) {
    size_t tried = 0;
    const std::vector<Failure> failures = Try(*trial, settings, folder, &tried);
    all_ok &= failures.empty();
    const std::string expects = ExpectationOf(*trial);
    if (json) {
      nlohmann::json line = {{"case", trial->name},
                             {"what", trial->what},
                             {"expects", expects},
                             {"settings", tried},
                             {"failures", nlohmann::json::array()}};
      for (const Failure& failure : failures)
        line["failures"].push_back({{"setting", failure.setting}, {"why", failure.why}});
      std::printf("%s\n", line.dump().c_str());
    } else {
      std::printf("%-18s %-64s %-20s %3zu of %3zu\n", trial->name.c_str(), trial->what.c_str(),
                  expects.c_str(), tried - failures.size(), tried);
      for (const Failure& failure : failures)
        std::printf("    %s: %s\n", failure.setting.c_str(), failure.why.c_str());
    }
    std::fflush(stdout);
  }
  std::filesystem::remove_all(folder);
  return all_ok ? 0 : 1;
}
