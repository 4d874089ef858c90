#!/bin/sh
# Runs one of this folder's Python tests, by the name of its module.
exec python3 -B -m unittest "tools.$1"
