// The folders that PyTorch's DCP wrote, of tests/reference/torch/golden/dcp_folders.json, as they
// were on disk. For tests that have the target's data.
#ifndef TESSERA_TESTS_CONFORMANCE_DCP_GOLDEN_FOLDERS_H_
#define TESSERA_TESTS_CONFORMANCE_DCP_GOLDEN_FOLDERS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace tessera::testing_support {

struct GoldenTensor {
  std::string dtype;  // As PyTorch says it: "torch.float32".
  std::vector<int64_t> shape;
  std::vector<double> values;  // Empty if not a floating-point tensor.
};

struct GoldenFolder {
  std::map<std::string, std::string> files;  // Name to bytes.
  std::map<std::string, GoldenTensor> tensors;

  // Writes the files into a new folder of the test's and returns its path.
  std::string WriteOut() const;
};

// `name`: one of those that tests/reference/torch/golden/README.md tells of.
GoldenFolder ReadGoldenFolder(const std::string& name);

// The files with an optimizer's parameters by id, as the state_dict() of torch.optim itself has
// them, where they are by name: in the names of the state's items and in the lists of the groups.
// `ids`: below 10, by name. What else is said of the folder stays as it was.
void PutIds(const std::map<std::string, int>& ids, GoldenFolder* folder);

}  // namespace tessera::testing_support

#endif  // TESSERA_TESTS_CONFORMANCE_DCP_GOLDEN_FOLDERS_H_
