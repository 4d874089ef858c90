#include "tests/object_store/object_store.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tessera {
namespace {

constexpr char kScript[] = "tests/object_store/serve.py";
constexpr int kNotInstalled = 77, kAnswerTimeoutMs = 120'000;

// What --test_env=TESSERA_TEST_MOTO_PYTHON=... says, or what tools/setup --with-operations installed.
std::string Interpreter() {
  if (const char* chosen = getenv("TESSERA_TEST_MOTO_PYTHON"); chosen != nullptr) return chosen;
  // The script is a link to the one in the source tree.
  std::error_code error;
  const std::filesystem::path tree =
      std::filesystem::canonical(kScript, error).parent_path().parent_path().parent_path();
  const std::filesystem::path python = tree / ".cache/moto/venv/bin/python";
  return !error && std::filesystem::exists(python) ? python.string() : "python3";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ObjectStore>> ObjectStore::Start() {
  std::unique_ptr<ObjectStore> store(new ObjectStore());
  int commands[2], answers[2];
  if (pipe2(commands, O_CLOEXEC) != 0 || pipe2(answers, O_CLOEXEC) != 0)
    return absl::InternalError("no pipes");
  const std::string python = Interpreter();
  store->process_ = fork();
  if (store->process_ < 0) return absl::InternalError("no process");
  if (store->process_ == 0) {
    dup2(commands[0], STDIN_FILENO);
    dup2(answers[1], STDOUT_FILENO);
    execlp(python.c_str(), python.c_str(), "-B", kScript, nullptr);
    _exit(kNotInstalled);
  }
  close(commands[0]);
  close(answers[1]);
  store->commands_ = commands[1];
  store->answers_ = answers[0];
  const absl::StatusOr<nlohmann::json> line = store->ReadLine();
  if (!line.ok()) {
    int status = 0;
    waitpid(std::exchange(store->process_, 0), &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != kNotInstalled) return line.status();
    return absl::NotFoundError("moto's server is not installed: run tools/setup --with-operations");
  }
  store->bucket_ = (*line)["bucket"].get<std::string>();
  const std::pair<const char*, const char*> variables[] = {{"AWS_ENDPOINT_URL_S3", "proxy"},
                                                           {"AWS_ACCESS_KEY_ID", "access_key"},
                                                           {"AWS_SECRET_ACCESS_KEY", "secret_key"}};
  for (const auto& [variable, member] : variables)
    setenv(variable, (*line)[member].get<std::string>().c_str(), 1);
  setenv("AWS_REGION", "us-east-1", 1);
  return store;
}

ObjectStore::~ObjectStore() {
  if (commands_ >= 0) close(commands_);  // It ends then.
  if (answers_ >= 0) close(answers_);
  if (process_ > 0) waitpid(process_, nullptr, 0);
}

std::string ObjectStore::Path(const std::string& name) const {
  return absl::StrCat("s3://", bucket_, "/", name);
}

absl::StatusOr<nlohmann::json> ObjectStore::ReadLine() {
  size_t end = 0;
  while ((end = read_.find('\n')) == std::string::npos) {
    pollfd ready = {answers_, POLLIN, 0};
    if (poll(&ready, 1, kAnswerTimeoutMs) <= 0)
      return absl::InternalError("the object store of the test does not answer");
    char piece[4096];
    const ssize_t got = read(answers_, piece, sizeof(piece));
    if (got <= 0) return absl::InternalError("the object store of the test ended");
    read_.append(piece, got);
  }
  nlohmann::json json = nlohmann::json::parse(read_.substr(0, end), nullptr, false);
  read_.erase(0, end + 1);
  return json;
}

nlohmann::json ObjectStore::Ask(const nlohmann::json& command) {
  const std::string line = command.dump() + "\n";
  if (write(commands_, line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    return nlohmann::json();
  absl::StatusOr<nlohmann::json> answer = ReadLine();
  return answer.ok() ? *std::move(answer) : nlohmann::json();
}

nlohmann::json ObjectStore::SetFaults(nlohmann::json faults) {
  faults["do"] = "faults";
  return Ask(faults);
}

}  // namespace tessera
