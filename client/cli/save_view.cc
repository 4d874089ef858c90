#include "client/cli/save_view.h"

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "client/cli/json_text.h"
#include "client/cli/text_table.h"
#include "layout/layout_dump.h"
#include "nlohmann/json.hpp"

namespace tessera::cli {
namespace {

using Json = nlohmann::ordered_json;

bool Ended(const v1::Save& save) { return save.state() == v1::SAVE_STATE_ENDED; }

std::string StateOf(const v1::Save& save) {
  switch (save.state()) {
    case v1::SAVE_STATE_WAITING:
      return "WAITING";
    case v1::SAVE_STATE_SAVING:
      return "SAVING";
    case v1::SAVE_STATE_ENDED:
      return save.code() == 0 ? "SAVED" : absl::StatusCodeToString(OutcomeOf(save).code());
    default:
      return "UNKNOWN";
  }
}

// "kept", or how it ended.
std::string FateOf(const v1::Save& save) {
  switch (save.fate()) {
    case v1::SAVE_FATE_KEPT:
      return "kept";
    case v1::SAVE_FATE_REPLACED:
      return "replaced";
    case v1::SAVE_FATE_REMOVED:
      return "removed";
    default:
      return "";
  }
}

std::string SecondsOf(int64_t ms) { return absl::FormatDuration(absl::Milliseconds(ms)); }

std::string TimeOf(int64_t unix_ms) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

// "waits for the next step"; after a failed try, why that failed.
std::string WhatItDoes(const v1::Save& save) {
  std::string text;
  if (save.state() == v1::SAVE_STATE_WAITING) {
    text = absl::StrCat("waits for ", save.waits_for());
  } else {
    text = absl::StrCat("step ", save.step(), ", ", FormatBytes(save.written_bytes()), " of ",
                        FormatBytes(save.all_bytes()), " written");
  }
  if (save.cancel_requested()) absl::StrAppend(&text, "; is being cancelled");
  if (save.tries() > 0)
    absl::StrAppend(&text, "; try ", save.tries(), " failed: ", save.last_failure());
  // Texts of servers and paths must not control the terminal.
  return Printable(text);
}

Json JsonOf(const v1::Save& save) {
  Json json = {{"number", save.number()},
               {"requested", save.requested()},
               {"path", save.spec().path()},
               {"state", StateOf(save)}};
  if (save.tries() > 0) {
    json["failed_tries"] = save.tries();
    json["last_failure"] = save.last_failure();
  }
  if (save.state() == v1::SAVE_STATE_WAITING) json["waits_for"] = save.waits_for();
  if (save.state() == v1::SAVE_STATE_SAVING) {
    json["step"] = save.step();
    json["written_bytes"] = save.written_bytes();
    json["all_bytes"] = save.all_bytes();
    json["cancel_requested"] = save.cancel_requested();
  }
  if (!Ended(save)) return json;
  json["step"] = save.step();
  json["ended_unix_ms"] = save.ended_unix_ms();
  json["took_ms"] = save.took_ms();
  if (save.code() == 0) {
    json["bytes"] = save.size_bytes();
    json["fate"] = FateOf(save);
  } else {
    json["error"] = save.message();
  }
  return json;
}

}  // namespace

absl::Status OutcomeOf(const v1::Save& save) {
  return absl::Status(static_cast<absl::StatusCode>(save.code()), save.message());
}

std::string SaveLine(const v1::Save& save) {
  const std::string name = absl::StrCat("save ", save.number(), ": ");
  if (!Ended(save)) return absl::StrCat(name, WhatItDoes(save));
  if (save.code() != 0) return Printable(absl::StrCat(name, OutcomeOf(save).ToString()));
  return Printable(absl::StrCat(name, "step ", save.step(), " in ", save.spec().path(), ", ",
                                FormatBytes(save.size_bytes()), " in ", SecondsOf(save.took_ms())));
}

std::string PendingTable(const v1::ListCheckpointsResponse& saves) {
  TextTable table({"save", "state", "path", "what it does"});
  bool any = false;
  for (const v1::Save& save : saves.saves()) {
    if (Ended(save)) continue;
    any = true;
    table.AddRow({absl::StrCat(save.number()), StateOf(save), Printable(save.spec().path()),
                  WhatItDoes(save)});
  }
  return any ? table.Render("") : "no saves wait or run\n";
}

std::string EndedTable(const v1::ListCheckpointsResponse& saves) {
  TextTable table({"step", "save", "ended (UTC)", "took", "size", "how", "path"});
  bool any = false;
  for (const v1::Save& save : saves.saves()) {
    if (!Ended(save)) continue;
    any = true;
    const std::string how =
        save.code() == 0 ? FateOf(save) : absl::StrCat(StateOf(save), ": ", save.message());
    table.AddRow({absl::StrCat(save.step()), absl::StrCat(save.number()),
                  TimeOf(save.ended_unix_ms()), SecondsOf(save.took_ms()),
                  FormatBytes(save.size_bytes()), Printable(how), Printable(save.spec().path())});
  }
  return any ? table.Render("") : "no checkpoints\n";
}

std::string SaveJson(const v1::Save& save) { return JsonText(JsonOf(save)); }

std::string SavesJson(const std::string& job_id, const v1::ListCheckpointsResponse& saves,
                      bool ended) {
  Json list = Json::array();
  for (const v1::Save& save : saves.saves()) {
    if (Ended(save) == ended) list.push_back(JsonOf(save));
  }
  return JsonText(Json{{"job", job_id}, {"saves", std::move(list)}});
}

}  // namespace tessera::cli
