#include "tests/testing/flight_log.h"

#include <algorithm>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "client/cli/cli.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tessera::testing_support {

std::vector<FlightOp> ReadFlightLog(const std::string& worker_address, const std::string& job_id,
                                    int rank) {
  std::ostringstream out, err;
  EXPECT_EQ(cli::RunCli({"dump", job_id, "--worker", worker_address, "--json", "--rank",
                         absl::StrCat(rank)},
                        {&out, &err, false}),
            kExitOk)
      << err.str();
  const nlohmann::json dump = nlohmann::json::parse(out.str(), nullptr, false);
  std::vector<FlightOp> log;
  if (!dump.is_object() || dump["ranks"].size() != 1) {
    ADD_FAILURE() << "no dump of rank " << rank << ": " << out.str();
    return log;
  }
  for (const nlohmann::json& record : dump["ranks"][0]["records"]) {
    FlightOp& op = log.emplace_back();
    op.step = record["step"];
    op.op = record["op"];
    if (record["unit"].is_string()) op.unit = record["unit"];
    op.bytes = record["bytes"];
  }
  return log;
}

FlightOps OpsOfSteps(const std::vector<FlightOp>& log, int64_t last_step) {
  FlightOps ops;
  for (const FlightOp& op : log)
    if (op.step <= last_step) ops.emplace_back(op.step, op.op, op.unit, op.bytes);
  return ops;
}

std::string UnshardsAndReductions(const std::vector<FlightOp>& log, int64_t step) {
  std::string script;
  for (const FlightOp& op : log) {
    if (op.step != step || (op.op != "unshard" && op.op != "reduce")) continue;
    absl::StrAppend(&script, script.empty() ? "" : " ", op.op == "unshard" ? "U " : "R ", op.unit);
  }
  return script;
}

int CountOps(const std::vector<FlightOp>& log, const std::string& op, int64_t step) {
  return static_cast<int>(std::count_if(log.begin(), log.end(), [&](const FlightOp& entry) {
    return entry.op == op && entry.step == step;
  }));
}

}  // namespace tessera::testing_support
