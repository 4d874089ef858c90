"""What Python's packages read of models that a job has written.

    read.py safetensors|torch|transformers FOLDER

FOLDER/MODEL/ has expected.json and expected.bin, what the test's trainers read of their parameters
themselves, and the same model as files: single/, sharded/, checkpoint/ in full precision, half/ and
brain/ in fp16 and bf16. Exit code 77: a package is not installed, which is named.
"""

import glob
import importlib.util
import json
import os
import sys

SKIPPED = 77
# Nothing is fetched, and nothing is written where a user keeps it.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("HF_HOME", os.environ.get("TEST_TMPDIR", "/tmp") + "/hf")

NEEDS = {"safetensors": ["numpy", "safetensors"],
         "torch": ["numpy", "safetensors", "torch"],
         "transformers": ["numpy", "safetensors", "torch", "transformers"]}
FULL = ("single", "sharded", "checkpoint")


def expected_of(model):
    """name -> fp32 array"""
    import numpy as np
    with open(f"{model}/expected.json", encoding="utf-8") as file:
        tensors = json.load(file)
    data = np.fromfile(f"{model}/expected.bin", dtype="<f4")
    arrays, at = {}, 0
    for tensor in tensors:
        numel = int(np.prod(tensor["shape"], dtype=int))
        arrays[tensor["name"]] = data[at:at + numel].reshape(tensor["shape"])
        at += numel
    if at != data.size or not arrays:
        sys.exit(f"{model}: the test wrote {data.size} values, of {at} that it names")
    return arrays


def files_of(folder):
    """The files of the folder's model, by its index where it has one."""
    index_path = f"{folder}/model.safetensors.index.json"
    if not os.path.exists(index_path):
        return [f"{folder}/model.safetensors"]
    with open(index_path, encoding="utf-8") as file:
        index = json.load(file)
    files = sorted({f"{folder}/{name}" for name in index["weight_map"].values()})
    if files != sorted(glob.glob(f"{folder}/model-*.safetensors")) or len(files) < 2:
        sys.exit(f"{folder}: its index names {files}")
    return files


def check_names(where, found, expected):
    if sorted(found) != sorted(expected):
        sys.exit(f"{where}: other tensors: {sorted(set(found) ^ set(expected))}")


def check_bits(where, name, found, expected):
    if (found.dtype, tuple(found.shape)) != (expected.dtype, tuple(expected.shape)):
        sys.exit(f"{where}: '{name}' is {found.dtype} {list(found.shape)}")
    if found.tobytes() != expected.tobytes():
        sys.exit(f"{where}: '{name}' has other bits")


def read_safetensors(model, expected):
    from safetensors import safe_open
    from safetensors.numpy import load_file
    for variant in (*FULL, "half"):
        folder, found = f"{model}/{variant}", {}
        for path in files_of(folder):
            found.update(load_file(path))
            with safe_open(path, framework="np") as opened:
                if opened.metadata()["format"] != "pt":
                    sys.exit(f"{path}: its format is {opened.metadata()}")
                for name in opened.keys():  # By slices too, as who loads a part does.
                    whole = opened.get_slice(name)
                    check_bits(path, name, whole[1:], found[name][1:])
        check_names(folder, found, expected)
        for name, array in expected.items():
            check_bits(folder, name, found[name],
                       array.astype("float16") if variant == "half" else array)
        total = sum(array.nbytes for array in found.values())
        if len(files_of(folder)) > 1:
            with open(f"{folder}/model.safetensors.index.json", encoding="utf-8") as file:
                if json.load(file)["metadata"]["total_size"] != total:
                    sys.exit(f"{folder}: its index does not say {total} bytes")


def module_of(expected):
    """A module with these parameters, none of which has its value yet."""
    import torch
    root = torch.nn.Module()
    for name, array in expected.items():
        *path, last = name.split(".")
        at = root
        for part in path:
            if not hasattr(at, part):
                at.add_module(part, torch.nn.Module())
            at = getattr(at, part)
        at.register_parameter(last, torch.nn.Parameter(torch.full(array.shape, float("nan"))))
    return root


def check_tensor(where, name, found, expected):
    """Bits of torch tensors."""
    import torch
    if (found.dtype, found.shape) != (expected.dtype, expected.shape):
        sys.exit(f"{where}: '{name}' is {found.dtype} {list(found.shape)}")
    bits = torch.int32 if found.dtype == torch.float32 else torch.int16
    if not torch.equal(found.detach().contiguous().view(bits), expected.view(bits)):
        sys.exit(f"{where}: '{name}' has other bits")


def read_torch(model, expected):
    import torch
    from safetensors.torch import load_file
    wanted = {name: torch.from_numpy(array.copy()) for name, array in expected.items()}
    dtypes = {"half": torch.float16, "brain": torch.bfloat16}
    for variant in (*FULL, *dtypes):
        folder, found = f"{model}/{variant}", {}
        for path in files_of(folder):
            found.update(load_file(path))
        check_names(folder, found, wanted)
        dtype = dtypes.get(variant, torch.float32)
        for name, tensor in wanted.items():
            check_tensor(folder, name, found[name], tensor.to(dtype))
        module = module_of(expected).to(dtype)
        module.load_state_dict(found, strict=True)
        for name, parameter in module.named_parameters():
            check_tensor(folder, name, parameter, wanted[name].to(dtype))


def read_transformers(model, expected):
    import torch
    import transformers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    wanted = {name: torch.from_numpy(array.copy()) for name, array in expected.items()}
    dtypes = {"half": torch.float16, "brain": torch.bfloat16}
    for variant in (*FULL, *dtypes):
        folder, dtype = f"{model}/{variant}", dtypes.get(variant, torch.float32)
        loaded, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if told[what]:
                sys.exit(f"{folder}: {what}: {told[what]}")
        parameters = dict(loaded.named_parameters())
        check_names(folder, parameters, wanted)
        for name, parameter in parameters.items():
            check_tensor(folder, name, parameter, wanted[name].to(dtype))
        tied = loaded.get_input_embeddings().weight
        if loaded.get_output_embeddings().weight is not tied:
            sys.exit(f"{folder}: the output has weights of its own")
        if variant == "single":  # A model, and no mere bag of tensors.
            if not torch.isfinite(loaded(input_ids=torch.tensor([[1, 2, 3]])).logits).all():
                sys.exit(f"{folder}: what it computes is not finite")


def main():
    package, folder = sys.argv[1:]
    for name in NEEDS[package]:
        if importlib.util.find_spec(name) is None:
            print(f"{sys.executable} has no package {name}")
            sys.exit(SKIPPED)
    models = sorted(glob.glob(f"{folder}/*/"))
    if not models:
        sys.exit(f"no model in {folder}")
    for model in models:
        globals()[f"read_{package}"](model.rstrip("/"), expected_of(model))
    print(f"{package} reads {', '.join(models)}")


if __name__ == "__main__":
    main()
