# One-line recipes; `just` lists them. ./run sets up .venv where that is needed.

_list:
    @just --list

# make .venv with what the tests need
setup:
    ./run setup

# every check and every test; arguments go to pytest
test *args:
    ./run test {{args}}

# the tests that need no real time
quick *args: setup
    .venv/bin/pytest -m "not realtime" {{args}}

# style and layering
lint: setup
    .venv/bin/ruff check && .venv/bin/ruff format --check && .venv/bin/lint-imports

# types
type: setup
    .venv/bin/pyright

# play scenarios against an agent
replay *args:
    ./run replay {{args}}

# measure the instrument itself
calibrate *args:
    ./run calibrate {{args}}

# every benchmark, one after another: they disturb each other
bench: setup
    for each in benchmarks/*.py; do echo "== $each" && .venv/bin/python "$each" || exit 1; done

# remove what can be made again
clean:
    rm -rf .venv dist build .pytest_cache .ruff_cache .hypothesis .import_linter_cache
