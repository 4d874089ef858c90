#!/bin/sh
# Runs manifests_test.py with a Python that has kubernetes-validate: that of tools/setup
# --with-operations, or else any.
set -eu
copy=$(mktemp -d "${TEST_TMPDIR:-/tmp}/manifests.XXXXXX")
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/deploy" "$copy/client/python" "$copy/programs"
cp -RL deploy/kubernetes "$copy/deploy/"
cp -RL client/python/tessera "$copy/client/python/"
for program in coordinator/tessera-coordinator worker/tessera-worker; do
  ln -s "$PWD/$program" "$copy/programs/"
done
python=python3
# The source tree, whose .cache is not in the sandbox: found by where a source file's link leads.
source_tree=$(dirname "$(readlink -f deploy/kubernetes/manifests_test.py)")/../..
for candidate in "$source_tree/.cache/kubernetes/venv/bin/python" "${HOME:-/nonexistent}/.cache/tessera/kubernetes/venv/bin/python"; do
  if [ -x "$candidate" ]; then python=$candidate && break; fi
done
export TESSERA_SOURCES="$copy" TESSERA_PROGRAMS="${TESSERA_PROGRAMS:-$copy/programs}" PYTHONDONTWRITEBYTECODE=1
PYTHONPATH=$PWD/client/python/tests "$python" -u deploy/kubernetes/manifests_test.py
