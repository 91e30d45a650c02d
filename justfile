# One-line recipes; `just` lists them. ./run sets up .venv if that is needed.

_list:
    @just --list

# make .venv with what the tests need
setup:
    ./run setup

# run every check and every test; arguments go to pytest
test *args:
    ./run test {{args}}

# run the tests that need no real time
quick *args: setup
    .venv/bin/pytest -m "not realtime" {{args}}

# check style and layering
lint: setup
    .venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/lint-imports

# check types
type: setup
    .venv/bin/pyright

# build the site of the documentation into build/site; --serve shows it while you write
docs *args: setup
    .venv/bin/python tools/docs_site.py {{args}}

# play scenarios against an agent
replay *args:
    ./run replay {{args}}

# measure the instrument itself
calibrate *args:
    ./run calibrate {{args}}

# run the benchmarks that need nothing but this machine, one after another because they disturb each other
bench: setup
    for each in capacity_search gate_trials interval_coverage labels stt_wer speed_wars \
        inference_public fuzz_caller flood soak caller_capacity; do echo "== $each" && .venv/bin/python benchmarks/$each.py || exit 1; done

# remove everything that can be made again
clean:
    rm -rf .venv dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# compare every scenario in every dialect with the frozen figures (the tests play a part of them)
golden: setup
    .venv/bin/python tests/golden/freeze.py --all
