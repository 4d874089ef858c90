// A benchmark that is killed while it writes its second part, for the tests of what runs such.
#include <signal.h>

#include <fstream>
#include <string>

#include "tests/gpu/rows_file.h"

int main(int argc, char** argv) {
  const std::string path = argc > 1 ? std::string(argv[1]).substr(sizeof("--json=") - 1) : "";
  tessera::gpu_check::BenchRow row;
  row.name = "first part";
  row.unit = "us";
  row.value = {1, 2, 3};
  tessera::gpu_check::RowsFile file(path);
  if (!file.Add({row}).ok()) return 1;
  std::ofstream(path + ".new") << "{\"rows\": [{\"name\": \"second part\"" << std::flush;
  raise(SIGKILL);
}
