#!/bin/sh
# run_test.sh SUITE...: runs Python suites of this folder with a Python that has torch: that of
# $TESSERA_TEST_PYTHON, of tools/setup --with-peers, or else any.
set -eu
folder=client/python
export TESSERA_LIBRARY="$PWD/client/c/libtessera.so" TESSERA_PROGRAMS="$PWD/$folder/tests/programs"
export PYTHONPATH="$PWD/$folder:$PWD/$folder/tests" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
export PATH="$PATH:/usr/sbin:/sbin" # Of daemons that suites start.
mkdir -p "$TESSERA_PROGRAMS"
for program in client/cli/tessera coordinator/tessera-coordinator worker/tessera-worker \
  worker/tessera-executor tests/example/train; do
  [ ! -e "$PWD/$program" ] || ln -sf "$PWD/$program" "$TESSERA_PROGRAMS/"
done
python=python3
# The source tree, whose .cache is not in the sandbox: found by where a source file's link leads.
source_tree=$(dirname "$(readlink -f "$folder/tests/run.py")")/../../..
for candidate in "${TESSERA_TEST_PYTHON:-}" "$source_tree/.cache/bench-peers/venv/bin/python" \
  "${HOME:-/nonexistent}/.cache/tessera/bench-peers/venv/bin/python"; do
  if [ -n "$candidate" ] && [ -x "$candidate" ]; then python=$candidate && break; fi
done
exec "$python" -u "$folder/tests/run.py" "$@"
